"""Errors of this machine's disk as errors of Skerry."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from skerry.core import DiskFull, FileError, FileMissing, NotADirectory, PermissionDenied, ReadOnly, SkerryError

_ERRORS: dict[int, type[FileError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.ENOENT: FileMissing,
    errno.ENOTDIR: NotADirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: ReadOnly,
}


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """An OSError of this machine's disk becomes a FileError that says what was being done."""
    try:
        yield
    except SkerryError:
        raise
    except OSError as error:
        kind = _ERRORS.get(error.errno or 0, FileError)
        raise kind(f"{doing}: {error.strerror or error}", errno=error.errno) from error
