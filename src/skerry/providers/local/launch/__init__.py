"""Starts a sandbox: bundle, system call filter, launcher, the agent's first message."""
