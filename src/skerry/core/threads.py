"""Blocking work on files, in a thread that whoever started it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call. Cancelled in whatever manner, this raises only once the call has ended.

    What the call works on is nobody else's until then; anyio's own way is left at once by a plain `Task.cancel`.
    """
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    continue
        raise
