"""The store in one SQLite file: all SQL is in this room."""

from __future__ import annotations

from skerry.server.store.sqlite.store import open_store

__all__ = ["open_store"]
