"""Replaces small files as a whole; every record is written here. docs/design/storage.md says which are flushed."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, flush: bool, mode: int = 0o600, several: bool = False) -> None:
    """A reader sees the old content or the new one, even if this process dies; `flush`: also if the machine does.

    `several` processes may write `path` at the same time: the last one wins. Otherwise the caller holds a lock.
    Raises OSError; the old content stays then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}") if several else path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(28, "the disk is full", str(temporary))
            if flush:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if flush:
        flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Flush the names in a directory to disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
