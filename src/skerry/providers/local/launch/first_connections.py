"""Keeps the connections from starting sandboxes: the first dial takes one over, which saves opening another."""

from __future__ import annotations

import weakref

from skerry.providers.local.launch.launch import Started

KEPT_CONNECTIONS = 64


class Connections:
    """By the id of their sandbox; safe from any number of threads."""

    def __init__(self) -> None:
        self._started: dict[str, Started] = {}
        weakref.finalize(self, _close, self._started)

    def keep(self, sandbox_id: str, started: Started) -> None:
        self.close(sandbox_id)  # another process may have stopped the sandbox at its other end
        self._started[sandbox_id] = started
        for oldest in list(self._started)[:-KEPT_CONNECTIONS]:  # a copy: other threads change it
            self.close(oldest)

    def take(self, sandbox_id: str) -> Started | None:
        """The connection from starting a sandbox just now; only the caller has it from here on."""
        started = self._started.pop(sandbox_id, None)
        if started is not None and not started.fresh:
            started.connection.close()
            return None
        return started

    def close(self, sandbox_id: str) -> None:
        """Close the kept connection: the next dial opens a new one."""
        if started := self._started.pop(sandbox_id, None):
            started.connection.close()

    def close_all(self) -> None:
        """For a forked child: the connections are its parent's."""
        _close(self._started)


def _close(connections: dict[str, Started]) -> None:
    for sandbox_id in list(connections):
        if started := connections.pop(sandbox_id, None):
            started.connection.close()
