"""Binary streams between the event loop and a thread that blocks on them; they hold only a few pieces."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError as FutureCancelled
from typing import Any

from skerry.core import ConnectionLost

PIECES = 4
PIECE = 1 << 20


class Outlet(io.RawIOBase):
    """A thread writes to it, the event loop iterates over it. `close_now` ends both sides."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES)
        self._parts: list[bytes] = []
        self._size = 0
        self._dead = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Waits while the reader has enough. Raises ConnectionLost when the reader is gone."""
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        if self._size >= PIECE:
            self.flush()
        return len(part)

    def flush(self) -> None:
        if self._parts:
            piece, self._parts, self._size = b"".join(self._parts), [], 0
            self._put(piece)

    def _put(self, piece: bytes | None) -> None:
        if self._dead:
            raise ConnectionLost("the client that reads the state is gone")
        try:
            asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop).result()
        except (FutureCancelled, RuntimeError):
            raise ConnectionLost("the client that reads the state is gone") from None
        if self._dead:
            raise ConnectionLost("the client that reads the state is gone")

    def abandon(self) -> None:
        """Called from the event loop when nobody reads any more; the thread's next write fails."""
        self._dead = True
        while not self._queue.empty():
            self._queue.get_nowait()

    async def finish(self) -> None:
        """Called from the event loop when the thread is done: sends the rest, and the end."""
        if self._parts:
            piece, self._parts, self._size = b"".join(self._parts), [], 0
            await self._queue.put(piece)
        await self._queue.put(None)

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            yield piece


class Inlet(io.RawIOBase):
    """The event loop's bytes as a file that a thread reads; what the source raises is raised there."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._rest = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest and not self._ended:
            piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            self._ended = piece is None
            self._rest = memoryview(piece or b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    async def _next(self) -> bytes | None:
        async for piece in self._source:
            return piece
        return None
