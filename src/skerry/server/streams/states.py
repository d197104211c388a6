"""Archives between a provider's thread and an HTTP body, a few pieces at a time."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from starlette.requests import ClientDisconnect

from skerry.core.errors import ConnectionLost, InvalidArgument, SkerryError
from skerry.core.plain import dumps
from skerry.core.problems import to_problem
from skerry.core.provider import Portable

PIECES = 4
"""Held at once, of what the provider writes at a time."""
_FRAME = struct.Struct(">cI")
DATA, PROGRESS, END, FAILED = b"d", b"p", b"e", b"x"


def _piece(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload


async def exporting(provider: Portable, source_id: str) -> AsyncIterator[bytes]:
    """The pieces of an export. What fails before the first is raised, what fails later is the last piece."""
    target = _Target()
    work = asyncio.create_task(provider.export_state(source_id, target.file(), key=None, on_progress=target.progress))
    work.add_done_callback(lambda done: target.finished())
    begun = False
    try:
        while (piece := await target.next()) is not None:
            begun = True
            yield piece
        try:
            yield _piece(END, dumps(await work))
        except SkerryError as error:
            if not begun:
                raise
            yield _piece(FAILED, dumps(to_problem(error)))
    finally:
        target.close()
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError, SkerryError, OSError):
            await work


class _Target:
    """Written by a thread, read by the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES)
        self._closed = self._ended = False

    def file(self) -> BinaryIO:
        made: Any = self
        return made  # type: ignore[no-any-return]

    def write(self, data: bytes | memoryview) -> int:
        self._put(_piece(DATA, bytes(data)))
        return len(data)

    def progress(self, done: int) -> None:
        self._put(_piece(PROGRESS, str(done).encode()))

    def _put(self, piece: bytes) -> None:
        if self._closed:
            raise BrokenPipeError("nobody reads the export any more")
        try:
            asyncio.run_coroutine_threadsafe(self._queue.put(piece), self._loop).result()
        except (RuntimeError, asyncio.CancelledError) as error:
            raise BrokenPipeError("nobody reads the export any more") from error

    async def next(self) -> bytes | None:
        """None: all has been written."""
        if self._ended and self._queue.empty():
            return None
        return await self._queue.get()

    def finished(self) -> None:
        self._ended = True
        with contextlib.suppress(asyncio.QueueFull):  # then the reader is not waiting
            self._queue.put_nowait(None)

    def close(self) -> None:
        """Let the thread go on, to find that nobody reads."""
        self._closed = True
        while not self._queue.empty():
            self._queue.get_nowait()


class Body:
    """The body of a request, read in the event loop or, as a file, in a thread."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()

    async def some(self, size: int) -> bytes:
        """Up to so many bytes; b"" at the end. Raises ConnectionLost where the client is gone."""
        while not self._buffer:
            try:
                self._buffer += await anext(self._chunks)
            except StopAsyncIteration:
                return b""
            except ClientDisconnect:
                raise ConnectionLost("the client is gone") from None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def exactly(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = await self.some(left)
            if not part:
                raise InvalidArgument("the body ends too early")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def in_thread(self) -> BinaryIO:
        made: Any = _Reader(self, self._loop)
        return made  # type: ignore[no-any-return]


class _Reader:
    def __init__(self, body: Body, loop: asyncio.AbstractEventLoop) -> None:
        self._body, self._loop = body, loop

    def read(self, size: int = -1) -> bytes:
        wanted = size if size >= 0 else 1 << 20
        return asyncio.run_coroutine_threadsafe(self._body.some(wanted), self._loop).result()
