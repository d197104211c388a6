"""File locks between processes and threads; the kernel releases them when their holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

from skerry.core import Conflict

_impatient: ContextVar[bool] = ContextVar("impatient", default=False)


class Busy(Exception):
    """Another operation holds the lock of a sandbox. This one did nothing: the caller waits and tries again."""


@contextmanager
def impatient() -> Iterator[None]:
    """In this thread, entering the lock of a sandbox raises Busy at once if another operation holds it."""
    before = _impatient.set(True)
    try:
        yield
    finally:
        _impatient.reset(before)


class FileLock:
    """A flock on a file, exclusive unless `shared`, held until `release` or the end of the last process that has it."""

    def __init__(self, path: Path, *, create: bool = True, shared: bool = False) -> None:
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self._fd, self._kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def acquire(self, timeout: float = 60.0) -> None:
        """Raises Conflict when another operation holds it for longer than that."""
        deadline = time.monotonic() + timeout
        pause = 0.0005
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise Conflict(f"another operation has held {self.path} for {timeout:.0f} s", retryable=True)
            time.sleep(pause)  # flock has no timed wait
            pause = min(pause * 2, 0.02)

    @property
    def path(self) -> str:
        return os.readlink(f"/proc/self/fd/{self._fd}")

    def fileno(self) -> int:
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            # Closing alone is not enough: a process that the launcher started may have a copy for a moment longer.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class SandboxLock(FileLock):
    """The lock of a sandbox; another operation may hold it for as long as a sandbox takes to end: see `impatient`."""

    def __enter__(self) -> SandboxLock:
        try:
            if not _impatient.get():
                self.acquire()
            elif not self.try_acquire():
                raise Busy
        except BaseException:
            self.release()
            raise
        return self
