"""The server: sandboxes over HTTP and WebSocket for many users. Needs the extra `skerry[server]`."""
