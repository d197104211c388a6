"""Models, errors, the provider contract and configuration."""
