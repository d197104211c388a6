"""Commands: asked for, run, their output, and the environment they get."""
