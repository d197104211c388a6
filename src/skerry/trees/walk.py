"""The entries of a host's directory, in order, each opened below its own directory so that no link is followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from skerry.core import Conflict, InvalidArgument, Unsupported
from skerry.trees.overlay import is_whiteout
from skerry.trees.records import MAX_DEPTH

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_REASONS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
_CHANGED = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO)

LeftOut = Callable[[bytes, str], object]
"""Called with the path of what does not come, and why."""


class Found(NamedTuple):
    path: bytes
    """Below the root, which has none."""
    name: str
    parent: int
    """The open directory it is in."""
    fd: int
    """Of a directory, or of a regular file unless `sizes_only`, open until the next step; else -1."""
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


def walk_tree(
    root: int,
    *,
    exclude: Collection[str] = (),
    left_out: LeftOut | None = None,
    sizes_only: bool = False,
) -> Generator[Found, None, None]:
    """Walk the entries below `root`; closes `root` at the end. Names in `exclude` are left out at every level.

    With `left_out`, only directories, files and links come; the rest, and what vanishes in the meantime, is told to
    it with the reason. Without it everything comes, and what vanishes or is a device is an error.

    Raises Unsupported for a device, Conflict for what changes in the meantime; for a tree that is too deep Unsupported,
    or InvalidArgument with `left_out`.
    """
    levels = [_Level(root, iter(()), b"")]
    try:
        levels[0].names = _names(root)
        yield Found(b"", ".", root, root, os.fstat(root), whiteout=False)
        while levels:
            level = levels[-1]
            for name in level.names:
                path = level.prefix + os.fsencode(name)
                if name in exclude:
                    if left_out is not None:
                        left_out(path, "excluded")
                    continue
                found = _look(level.fd, name, path, left_out, sizes_only)
                if found is None:
                    continue
                fd = found.fd
                try:
                    if stat.S_ISDIR(found.info.st_mode):
                        if len(levels) == MAX_DEPTH:
                            refused = Unsupported if left_out is None else InvalidArgument
                            raise refused(f"{os.fsdecode(path)[:80]!r}… is deeper than {MAX_DEPTH} levels")
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


def _look(parent: int, name: str, path: bytes, left_out: LeftOut | None, sizes_only: bool) -> Found | None:
    """None for what was told to `left_out`."""
    fd = -1
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFDIR or (kind == stat.S_IFREG and not sizes_only):
            fd = os.open(name, _FILE if kind == stat.S_IFREG else _DIRECTORY, dir_fd=parent)
            info = os.fstat(fd)
            if stat.S_IFMT(info.st_mode) != kind:
                os.close(fd)
                raise FileNotFoundError(errno.ENOENT, "replaced by something else")
    except OSError as error:
        if error.errno not in _CHANGED:
            raise
        if left_out is None:
            raise changed(path) from None
        left_out(path, "vanished")
        return None
    whiteout = False
    if kind in _REASONS:
        if left_out is not None:
            left_out(path, _REASONS[kind])
            return None
        whiteout = is_whiteout(info)
        if not whiteout and _REASONS[kind] == "device":
            raise Unsupported(
                f"{os.fsdecode(path)!r} is a device, which no sandbox can make and no archive keeps", hint="remove it"
            )
    return Found(path, name, parent, fd, info, whiteout)


def _names(fd: int) -> Iterator[str]:
    return iter(sorted(os.listdir(fd)))
