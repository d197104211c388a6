"""Cases of a sandbox's states and of what is kept of it."""
