"""Cases of files."""
