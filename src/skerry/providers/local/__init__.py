"""Sandboxes on this Linux machine: no account, no daemon, no Docker."""

from skerry.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
