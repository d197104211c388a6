"""The connection to a sandbox's agent: dialled once, shared by every call."""
