"""HTTP: what every request passes through, and how answers are made."""
