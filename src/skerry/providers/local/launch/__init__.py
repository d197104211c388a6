"""Starting a sandbox: bundle, system call filter, launcher, the first word of its agent."""
