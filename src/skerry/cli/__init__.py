"""The `skerry` command."""
