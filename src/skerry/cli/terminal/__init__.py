"""This process's terminal: keys, output, progress."""
