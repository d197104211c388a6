"""HTTP: what every request passes, and how answers are made."""
