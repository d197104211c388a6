"""Work in steps: a thread does each step, and between steps the work waits without a thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from skerry._model import Model
from skerry.providers.local.host import ProcessId

T = TypeVar("T")


class Exit(Model, kw_only=False):
    """A wait until a process is gone, for this many seconds at most."""

    process: ProcessId
    seconds: float


Steps: TypeAlias = Generator[Exit, None, T]
"""Yields what it waits for; any thread may do the next step. Closing it early releases the locks that it holds."""


def once(work: Callable[[], T]) -> Steps[T]:
    """Work of one step."""
    return work()
    yield  # type: ignore[unreachable]


def complete(steps: Steps[T]) -> T:
    """Do all steps in this thread, and wait in it."""
    while True:
        try:
            wait = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        wait.process.wait(wait.seconds)
