"""Cases of commands, processes, terminals and ports."""
