"""Commands: their options, how they run, their output and their environment."""
