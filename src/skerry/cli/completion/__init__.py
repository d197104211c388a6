"""Completion: the shells' scripts, and the candidates they ask for."""

ASK = "__complete"
"""The first argument with which the scripts call this program."""
