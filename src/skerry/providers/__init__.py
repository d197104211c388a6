"""Drivers: each is a package that Skerry finds by its name."""
