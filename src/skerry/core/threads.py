"""Blocking work on files, in a thread that the caller waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call. However the caller is cancelled, this raises only once the call has ended.

    Until then nothing else may use what the call works on. A plain `Task.cancel` leaves anyio's own function at once.
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
