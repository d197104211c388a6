"""Bytes to and from an agent as callbacks: the quickest form of a channel's stream, where a provider has one."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from anyio.abc import ByteStream, SocketAttribute, UNIXSocketStream


class Ends(Protocol):
    """Receives what comes out of a pipe."""

    def received(self, data: memoryview | bytes) -> None: ...
    def drained(self) -> None:
        """Called when everything written has left."""

    def ended(self, error: Exception | None) -> None:
        """Called when nothing more comes; None is a proper end. Called at most once, and not after `close`."""


class Pipe(Protocol):
    """Belongs to the event loop it was made in."""

    @property
    def pending(self) -> int:
        """Bytes written that have not left yet."""

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write all of them in order. Their memory must not change while something is pending, until `keep`."""

    def keep(self) -> None:
        """Copy what is pending: its memory may change now."""

    def close(self) -> None:
        """Stop at once; nothing is called back any more."""

    async def wait_closed(self) -> None: ...


class PipeStream(ByteStream):
    """A stream that can become a pipe; after that it must not be used as a stream."""

    @abstractmethod
    def into_pipe(self, ends: Ends) -> Pipe:
        """Become a pipe. `ends` first gets what has already come, but not before this returns."""


def raw_socket(stream: ByteStream) -> socket.socket | None:
    """The non-blocking socket below `stream`, if there is one to read and write without a layer in between."""
    raw = stream.extra(SocketAttribute.raw_socket, None) if isinstance(stream, UNIXSocketStream) else None
    return raw if isinstance(raw, socket.socket) and raw.gettimeout() == 0 else None
