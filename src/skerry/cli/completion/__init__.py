"""Completion: the scripts for shells, and the candidates they ask for."""
