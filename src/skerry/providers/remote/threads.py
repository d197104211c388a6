"""Runs blocking requests in threads, so that one provider object serves any number of event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")


async def to_the_end(
    threads: ThreadPoolExecutor, work: Callable[[], T], on_cancel: Callable[[], None] = lambda: None
) -> T:
    """Run `work` in a thread. A cancellation takes effect when it has ended; `on_cancel` may make it end sooner."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        future.exception()  # retrieved, so that asyncio does not report it as never retrieved
        raise cancelled
    return future.result()


async def abandonable(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run `work`, which changes nothing, in a thread; a cancelled caller does not wait for it."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


class Stop:
    """Ends work in a thread at its next step, once a caller asks for it."""

    def __init__(self, on_progress: Callable[[int], None] | None) -> None:
        self._asked = False
        self._on_progress = on_progress

    def ask(self) -> None:
        self._asked = True

    def tell(self, done: int) -> None:
        self._check()
        if self._on_progress is not None:
            self._on_progress(done)

    def around(self, target: BinaryIO) -> BinaryIO:
        """`target`, to which nothing more is written after `ask`."""
        made: Any = _Stopping(target, self._check)
        return made  # type: ignore[no-any-return]

    def _check(self) -> None:
        if self._asked:
            raise _Stopped


class _Stopping:
    def __init__(self, target: BinaryIO, check: Callable[[], None]) -> None:
        self._target, self._check = target, check

    def write(self, data: bytes) -> int:
        self._check()
        return self._target.write(data)


class _Stopped(Exception):
    """The caller that waited for the work was cancelled."""
