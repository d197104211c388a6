"""One sandbox: its folder, its record, and every change of its state."""
