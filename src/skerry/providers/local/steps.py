"""Work in steps: what blocks is done in a thread, and what only waits is said, so that it can wait without one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from skerry.providers.local.host import ProcessId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exit:
    """Waits until a process is gone, or for so many seconds."""

    process: ProcessId
    seconds: float


Steps: TypeAlias = Generator[Exit, None, T]
"""Yields what it waits for; any thread may do the next step. Given up, it lets go of the locks that it holds."""


def once(work: Callable[[], T]) -> Steps[T]:
    """Work that is one step."""
    return work()
    yield  # type: ignore[unreachable]


def complete(steps: Steps[T]) -> T:
    """Do all of it in this thread, and wait in it."""
    while True:
        try:
            wait = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        wait.process.wait(wait.seconds)
