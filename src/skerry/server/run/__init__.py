"""The running server: its process, its log, its certificates."""
