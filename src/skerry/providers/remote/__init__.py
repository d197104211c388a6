"""Sandboxes of a Skerry server: the same as locally, over HTTP and WebSocket."""

from skerry.providers.remote.provider import RemoteProvider

__all__ = ["RemoteProvider"]
