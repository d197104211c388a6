"""TCP ports of a sandbox."""
