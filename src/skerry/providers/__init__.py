"""Drivers, each in a package of its own, found by entry point."""
