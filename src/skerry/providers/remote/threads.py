"""Blocking requests in threads, so that one provider object serves any number of event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancellation takes effect when it has ended: what it changed is known then."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # looked at, so that it is not reported as forgotten
        raise cancelled
    return future.result()


async def abandonable(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run `work`, which changes nothing, in a thread; who is cancelled does not wait for it."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
