"""Limits: cgroups, maxima, and the network."""
