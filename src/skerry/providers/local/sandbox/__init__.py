"""One sandbox: its folder and record, and every change of its state."""
