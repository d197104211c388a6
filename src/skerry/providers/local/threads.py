"""Does blocking work in threads; waiting for other operations is done in the event loop, so it holds no thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio

from skerry.core import Conflict
from skerry.providers.local.locks import Busy, impatient
from skerry.providers.local.steps import Exit, Steps, once

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a change of a sandbox waits for the one before it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
"""Seconds between two attempts at a lock that another process has: a wait for flock cannot be cancelled."""


class Threads:
    """The threads of a provider. Looks have their own threads, so no look waits for a change to end.

    Work that has begun is finished even if its caller is cancelled: the cancellation takes effect then.
    """

    def __init__(self) -> None:
        # Creates use the processor: few at a time, so that in a burst the first are ready long before the last.
        self._creating = ThreadPoolExecutor(2 * (os.cpu_count() or 1), "skerry-create")
        self._working = ThreadPoolExecutor(64, "skerry-local")
        self._looking = ThreadPoolExecutor(8, "skerry-look")
        self._settling = ThreadPoolExecutor(16, "skerry-settle")
        self._turns: _PerLoop[WeakValueDictionary[str, asyncio.Lock]] = _PerLoop(WeakValueDictionary)
        self._settled: _PerLoop[dict[str, asyncio.Task[object]]] = _PerLoop(dict)

    async def look(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work that is quick and waits for nothing."""
        return await _to_the_end(self._looking, partial(function, *args, **kwargs), _Cancellation())

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.work_until(partial(function, *args, **kwargs))

    async def work_until(self, work: Callable[[], T], on_cancel: Callable[[], None] | None = None) -> T:
        """Do `work`; `on_cancel` is called when the caller is cancelled, and may make the work end sooner."""
        return await _to_the_end(self._working, work, _Cancellation(on_cancel))

    async def work_patiently(self, work: Callable[[], T], on_cancel: Callable[[], None] | None = None) -> T:
        """Do work that may find a sandbox's lock held before it has done anything: then it is tried again.

        Raises Conflict when the lock is held for too long.
        """
        return await self._retried(self._working, lambda: once(work), "its sandbox", _until(), on_cancel)

    async def create(self, work: Callable[[], T]) -> T:
        """The same for work that makes a sandbox."""
        return await self._retried(self._creating, lambda: once(work), "the same sandbox", _until(), None)

    async def change(self, sandbox_id: str, work: Callable[[], T], on_cancel: Callable[[], None] | None = None) -> T:
        """Do work that holds the lock of a sandbox. Raises Conflict when another change takes too long."""
        return await self.change_in_steps(sandbox_id, lambda: once(work), on_cancel)

    async def change_in_steps(
        self, sandbox_id: str, start: Callable[[], Steps[T]], on_cancel: Callable[[], None] | None = None
    ) -> T:
        """The same in steps: between two steps, it waits in the event loop."""
        until = _until()
        turn = self._turns.here().setdefault(sandbox_id, asyncio.Lock())
        try:
            async with asyncio.timeout(PATIENCE):
                await turn.acquire()
        except TimeoutError:
            raise _taken(f"sandbox {sandbox_id}") from None
        try:
            return await self._retried(self._working, start, f"sandbox {sandbox_id}", until, on_cancel)
        finally:
            turn.release()

    def is_changing(self, sandbox_id: str) -> bool:
        """Whether this process is changing the sandbox."""
        turn = self._turns.here().get(sandbox_id)
        return turn is not None and turn.locked()

    def settle(self, sandbox_id: str, work: Callable[[], T]) -> asyncio.Task[T]:
        """The one task that settles a sandbox whose end may have come; it continues even if its callers give up."""
        tasks = self._settled.here()
        found = tasks.get(sandbox_id)
        if found is None:
            found = asyncio.create_task(_to_the_end(self._settling, work, _Cancellation()))
            tasks[sandbox_id] = found
            found.add_done_callback(lambda task: _forget(tasks, sandbox_id, task))
        return found  # type: ignore[return-value]

    async def _retried(
        self,
        threads: ThreadPoolExecutor,
        start: Callable[[], Steps[T]],
        what: str,
        until: float,
        on_cancel: Callable[[], None] | None,
    ) -> T:
        pause = _FIRST_PAUSE
        while True:
            try:
                return await _in_steps(threads, start, _Cancellation(on_cancel))
            except Busy:
                if time.monotonic() > until:
                    raise _taken(what) from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _until() -> float:
    return time.monotonic() + PATIENCE


def _taken(what: str) -> Conflict:
    return Conflict(f"another operation has been working on {what} for {PATIENCE:.0f} s", retryable=True)


def _forget(tasks: dict[str, asyncio.Task[object]], sandbox_id: str, task: asyncio.Task[object]) -> None:
    tasks.pop(sandbox_id, None)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not report it as never retrieved


class _PerLoop(Generic[T]):
    """A value for each event loop: asyncio's objects belong to one loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._each: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def here(self) -> T:
        loop = asyncio.get_running_loop()
        found = self._each.get(loop)
        if found is None:
            found = self._each.setdefault(loop, self._make())
        return found


class _Cancellation:
    """Waits in spite of cancellations and remembers the last; `on_cancel` may make the work end sooner."""

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._on_cancel = on_cancel
        self._error: asyncio.CancelledError | None = None

    async def wait(self, future: asyncio.Future[T], timeout: float | None = None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not future.done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                # anyio cancels again at every turn of the loop until its scope is left: once is enough.
                with anyio.CancelScope(shield=self._error is not None):
                    await asyncio.wait([future], timeout=left)
            except asyncio.CancelledError as error:
                self._error = error
                if self._on_cancel is not None:
                    self._on_cancel()

    def take_effect(self) -> None:
        """Raises CancelledError if the caller was cancelled."""
        if self._error is not None:
            raise self._error


async def _to_the_end(threads: ThreadPoolExecutor, work: Callable[[], T], cancellation: _Cancellation) -> T:
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    await cancellation.wait(future)
    error = future.exception()  # retrieved, so that asyncio does not report it as never retrieved
    cancellation.take_effect()
    if error is not None:
        raise error
    return future.result()


async def _in_steps(threads: ThreadPoolExecutor, start: Callable[[], Steps[T]], cancellation: _Cancellation) -> T:
    steps: list[Steps[T]] = []

    def step() -> Exit | _Done[T]:
        with impatient():
            if not steps:
                steps.append(start())
            try:
                return next(steps[0])
            except StopIteration as end:
                return _Done(end.value)

    while True:
        future = asyncio.get_running_loop().run_in_executor(threads, step)
        await cancellation.wait(future)
        error = future.exception()
        if error is not None:
            cancellation.take_effect()
            raise error
        found = future.result()
        if isinstance(found, _Done):
            cancellation.take_effect()
            return found.result
        await _exited(found, cancellation)


class _Done(Generic[T]):
    def __init__(self, result: T) -> None:
        self.result = result


async def _exited(wait: Exit, cancellation: _Cancellation) -> None:
    fd = wait.process.descriptor()
    if fd is None:
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, lambda: None if gone.done() else gone.set_result(None))
        await cancellation.wait(gone, wait.seconds)
    finally:
        loop.remove_reader(fd)
        os.close(fd)
