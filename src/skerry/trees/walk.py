"""The entries of a layer, in order, each opened below its own directory so that no link is ever followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from skerry.core import Conflict, Unsupported
from skerry.trees.overlay import is_whiteout
from skerry.trees.records import MAX_DEPTH

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CHANGED = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


class Found(NamedTuple):
    path: bytes
    """Below the root, which has none."""
    name: str
    parent: int
    """The open directory it is in."""
    fd: int
    """Of a regular file or directory, open until the next step; else -1."""
    info: os.stat_result
    whiteout: bool


@dataclass(slots=True)
class _Level:
    fd: int
    names: Iterator[str]
    prefix: bytes


def changed(path: bytes) -> Conflict:
    return Conflict(
        f"{os.fsdecode(path)!r} changed while it was read", hint="stop or freeze whatever writes there, then try again"
    )


def open_root(root: os.PathLike[str] | str | int) -> int:
    """Open a new descriptor of the root."""
    if isinstance(root, int):
        return os.open(".", _DIRECTORY, dir_fd=root)
    return os.open(root, _DIRECTORY)


def walk_tree(root: int) -> Generator[Found, None, None]:
    """Walk the entries below `root`; closes `root` at the end.

    Raises Unsupported for a device, or a tree that is too deep; Conflict for what changes in the meantime.
    """
    levels = [_Level(root, iter(()), b"")]
    try:
        levels[0].names = _names(root)
        yield Found(b"", ".", root, root, os.fstat(root), whiteout=False)
        while levels:
            level = levels[-1]
            for name in level.names:
                path = level.prefix + os.fsencode(name)
                fd = -1
                try:
                    found = _look(level.fd, name, path)
                    fd = found.fd
                    if stat.S_ISDIR(found.info.st_mode):
                        if len(levels) == MAX_DEPTH:
                            raise Unsupported(f"{os.fsdecode(path)[:80]!r}… is deeper than {MAX_DEPTH} levels")
                        levels.append(_Level(fd, _names(fd), path + b"/"))
                        fd = -1
                    yield found
                finally:
                    if fd >= 0:
                        os.close(fd)
                if levels[-1] is not level:
                    break
            else:
                os.close(levels.pop().fd)
    finally:
        for level in levels:
            os.close(level.fd)


def _look(parent: int, name: str, path: bytes) -> Found:
    fd = -1
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        mode = info.st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            fd = os.open(name, _FILE if stat.S_ISREG(mode) else _DIRECTORY, dir_fd=parent)
            info = os.fstat(fd)
            if stat.S_IFMT(info.st_mode) != stat.S_IFMT(mode):
                os.close(fd)
                raise changed(path)
    except OSError as error:
        if error.errno in _CHANGED:
            raise changed(path) from None
        raise
    whiteout = is_whiteout(info)
    if not whiteout and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise Unsupported(
            f"{os.fsdecode(path)!r} is a device, which no sandbox can make and no archive keeps", hint="remove it"
        )
    return Found(path, name, parent, fd, info, whiteout)


def _names(fd: int) -> Iterator[str]:
    return iter(sorted(os.listdir(fd)))
