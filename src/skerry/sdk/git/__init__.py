"""Git inside a sandbox."""
