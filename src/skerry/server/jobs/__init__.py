"""The work of a server that no request waits for."""
