"""The server's background jobs: work that no request waits for."""
