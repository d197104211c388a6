"""Pipes whose other end may do nothing for long: a thread that waits for it can be interrupted."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from typing import Literal, Protocol, runtime_checkable


class Interrupted(Exception):
    """The caller has been cancelled."""


@runtime_checkable
class Interruptible(Protocol):
    """A stream that a provider interrupts when its caller is cancelled: a thread that waits in it ends."""

    def interrupt(self) -> None:
        """Make `read` and `write` raise, also those under way. May be called from any thread, any number of times."""


class InterruptiblePipe:
    """A pipe, FIFO, terminal or device, by its path or descriptor; `read` and `write` as those of an unbuffered file.

    A path is opened by the first of them, since a FIFO opens when its other end does. Raises OSError, Interrupted.
    """

    def __init__(self, place: str | int, mode: Literal["r", "w"]) -> None:
        self._path = None if isinstance(place, int) else place
        self._fd = place if isinstance(place, int) else -1
        self._flags = os.O_CLOEXEC | (os.O_RDONLY if mode == "r" else os.O_WRONLY)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._other, self._interrupted = -1, False

    def read(self, size: int) -> bytes:
        return os.read(self._ready(select.POLLIN), size)

    def write(self, data: bytes | memoryview) -> int:
        # This much never blocks where there is room for anything.
        return os.write(self._ready(select.POLLOUT), memoryview(data)[: select.PIPE_BUF])

    def interrupt(self) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        os.eventfd_write(self._wake, 1)
        if self._path is not None and self._fd < 0:
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.stat(self._path).st_mode):  # a thread that waits for its other end meets this one
                    self._other = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """What was given as a descriptor stays open."""
        for fd in (-1 if self._path is None else self._fd, self._other, self._wake):
            if fd >= 0:
                os.close(fd)

    def _ready(self, event: int) -> int:
        if self._path is not None and self._fd < 0 and not self._interrupted:
            self._fd = os.open(self._path, self._flags)
        if not self._interrupted:
            poll = select.poll()
            poll.register(self._fd, event)
            poll.register(self._wake, select.POLLIN)
            poll.poll()
        if self._interrupted:
            raise Interrupted
        return self._fd
