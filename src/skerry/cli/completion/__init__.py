"""Completion: the shells' scripts, and the candidates they ask for."""
