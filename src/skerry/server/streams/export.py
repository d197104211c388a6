"""Exports as pieces, which include what an HTTP answer cannot say once it has begun: progress and the outcome."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from typing import Any, BinaryIO

from skerry.core import Portable, SkerryError, dump_json, to_problem
from skerry.server.streams.bridge import Outlet

_FRAME = struct.Struct(">cI")
DATA, PROGRESS, END, FAILED = b"d", b"p", b"e", b"x"


def _piece(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload


async def exporting(provider: Portable, source_id: str) -> AsyncGenerator[bytes]:
    """The pieces of an export. An error before the first piece is raised, a later one is the last piece."""
    outlet = Outlet()
    target = _Target(outlet)

    async def write() -> object:
        try:
            return await provider.export_state(source_id, target.file(), key=None, on_progress=target.progress)
        finally:
            await outlet.finish()

    work = asyncio.ensure_future(write())
    begun = False
    try:
        async for pieces in outlet.pieces():
            begun = True
            yield pieces
        try:
            yield _piece(END, dump_json(await work))
        except SkerryError as error:
            if not begun:
                raise
            yield _piece(FAILED, dump_json(to_problem(error)))
    finally:
        outlet.abandon()
        work.cancel()
        await asyncio.wait((work,))


class _Target:
    """What the provider's thread writes to."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def file(self) -> BinaryIO:
        made: Any = self
        return made  # type: ignore[no-any-return]

    def write(self, data: bytes | memoryview) -> int:
        self._outlet.write(_piece(DATA, bytes(data)))
        return len(data)

    def progress(self, done: int) -> None:
        self._outlet.write(_piece(PROGRESS, str(done).encode()))
