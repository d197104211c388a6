"""Runs coroutines from blocking code, on one background event loop for each process."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType
from typing import Generic, TypeVar, cast

from skerry.core import SkerryWarning

T = TypeVar("T")

CLEAN_UP = 10.0
"""How long an interrupted call waits for its own clean-up."""
_END = object()

# Protects the making of the loop.
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_abandoned: list[asyncio.AbstractEventLoop] = []
_thread: ContextVar[int | None] = ContextVar("skerry-thread", default=None)
"""The thread that a blocking call came from."""


def caller() -> object:
    """The caller, the same from one call to the next: the task, or the thread that a blocking call came from."""
    return _thread.get() or asyncio.current_task()


def warn_caller(text: str) -> None:
    """A SkerryWarning at the line that called this package, also where that was a blocking call of another thread."""
    thread = _thread.get()
    frame: FrameType | None = None if thread is None else sys._current_frames().get(thread)
    frame = frame or sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "skerry":
        frame = frame.f_back
    module, registry = frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, SkerryWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _get_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(_loop,), name="skerry-io", daemon=True).start()
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _forget_loop() -> None:
    """A forked child has no loop thread; it starts its own when it needs one.

    The old loop is kept: closing it would take the parent's file descriptors out of the parent's epoll.
    """
    global _loop, _lock
    if _loop is not None:
        _abandoned.append(_loop)
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)


def _shut_down() -> None:
    """At exit, end what still runs, so that no socket is left to the garbage collector."""
    loop = _loop
    if loop is None or loop.is_closed():
        return

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    with suppress(TimeoutError, CancelledError):
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(2)
    loop.call_soon_threadsafe(loop.stop)


atexit.register(_shut_down)


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run `coroutine` to its end and return what it returns.

    An interrupt, by Ctrl-C for example, cancels it and is raised once its clean-up is done or has taken 10 seconds.
    Raises RuntimeError on the background loop itself, where waiting could never end.
    """
    loop = _loop or _get_loop()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("a blocking call from Skerry's own event loop (a callback?); use the Async classes there")
    one = _Call(coroutine)
    try:
        token = _thread.set(threading.get_ident())
        try:
            loop.call_soon_threadsafe(one.begin, loop)
        finally:
            _thread.reset(token)
        one.done.acquire()
    except BaseException:
        if not one.ended:
            loop.call_soon_threadsafe(one.cancel)
            one.done.acquire(timeout=CLEAN_UP)
        raise
    return one.result()


class _Call(Generic[T]):
    """A coroutine on the loop, and the lock that is open once it has ended: the quickest thing a thread can wait on."""

    __slots__ = ("_coroutine", "_error", "_task", "_value", "done", "ended")

    def __init__(self, coroutine: Coroutine[object, object, T]) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.ended = False
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._error is None:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        """Keeps the outcome here: a task's own callback would come one turn of the loop later."""
        try:
            self._value = await self._coroutine
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.done.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._error is None:  # interrupted before it began
            self._error = asyncio.CancelledError()
            self._coroutine.close()
            self._end()

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The traceback holds this frame: without the cycle the error is freed when the caller is done with it.
                self._error = None
        return cast(T, self._value)


def call(function: Callable[[], T]) -> T:
    """Run a plain function that needs the loop's thread."""

    async def wrapped() -> T:
        return function()

    return run(wrapped())


async def next_or_none(stream: AsyncIterator[T]) -> T | None:
    """The next item; None at the end."""
    return await anext(stream, None)


def iterate(stream: AsyncIterator[T]) -> Iterator[T]:
    """Drain `stream` one item at a time; close it if the caller stops early."""

    async def step() -> T | object:
        return await anext(stream, _END)

    async def close() -> None:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()

    try:
        while (item := run(step())) is not _END:
            yield item  # type: ignore[misc]
    finally:
        run(close())
