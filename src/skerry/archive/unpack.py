"""Members of an archive become a layer again. Nothing in an archive is trusted.

Members come in the order of a walk, so only the stack of directories they are in is open. Every name is made below its
own directory and only if it is free; no path is resolved as a whole and no link is followed. A directory gets its
owner, mode, attributes and time when everything in it is there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass

from skerry.archive.format import MAX_NAME, Limits
from skerry.core import Corrupted, InvalidArgument, Unsupported
from skerry.trees import MAX_DEPTH, Member, overlay, sparse, tar

_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = 512 * 1024
_MAX_MODE = 0o7777
_MAX_TARGET = 4095


@dataclass(slots=True)
class _Level:
    fd: int
    prefix: bytes
    """The path of what is in here, with its slash."""
    member: Member
    opaque: bool = False


class Content:
    """What is stored of one member, hashed and accounted for as it is taken."""

    def __init__(self, read: Callable[[int], bytes], spend: Callable[[int], None]) -> None:
        self.hash = hashlib.sha256()
        self._read = read
        self._spend = spend

    def layout(self, size: int) -> bytes:
        """Of the map of a sparse file."""
        data = self._read(size)
        self.hash.update(data)
        return data

    def data(self, size: int) -> bytes:
        self._spend(size)
        data = self._read(size)
        self.hash.update(data)
        return data


class Layer:
    """One layer, written into a directory that is empty. `add` its members, then `settle`; `close` in any case."""

    def __init__(self, directory: os.PathLike[str] | str | int, prefix: bytes, limits: Limits) -> None:
        self.prefix = prefix
        self._limits = limits
        self._levels: list[_Level] = []
        self._root = os.open(".", _HERE, dir_fd=directory) if isinstance(directory, int) else os.open(directory, _HERE)
        if os.listdir(self._root):
            os.close(self._root)
            raise InvalidArgument(f"an archive is unpacked into an empty directory, which {directory} is not")

    def add(self, member: Member, content: Content) -> bool:
        """Whether it was a mark of the overlay. Raises Corrupted, Unsupported or OSError."""
        if member.uid > self._limits.max_id or member.gid > self._limits.max_id or member.mode > _MAX_MODE:
            raise Corrupted(f"{member.path[:200]!r} in the archive has an impossible owner or mode")
        if member.type != tar.FILE and (member.size or member.real_size is not None):
            raise Corrupted(f"{member.path[:200]!r} in the archive has content, though it is not a file")
        if not all(overlay.may_be_set(name) for name, _ in member.xattrs):
            raise Corrupted(f"{member.path[:200]!r} in the archive has an attribute that no sandbox can set")
        if not self._levels:
            self._begin(member)
            return False
        name = self._climb(member)
        level = self._levels[-1]
        reserved = name.startswith(overlay.WHITEOUT)
        if (member.literal and not reserved) or (member.hides and (member.literal or name != overlay.OPAQUE)):
            raise Corrupted(f"{member.path[:200]!r} in the archive is said to be what its name is not")
        if reserved and not member.literal:
            self._mark(level, name, member)
            return True
        try:
            self._make(level.fd, name, member, content)
        except FileExistsError:
            raise Corrupted(f"{member.path[:200]!r} comes twice in the archive") from None
        return False

    def settle(self) -> None:
        """Give the directories that are still open their attributes."""
        while self._levels:
            self._leave()

    def close_directories(self) -> None:
        """All but the root, which is last: a layer is not complete before the whole archive is."""
        if not self._levels:
            raise Corrupted(f"the archive lacks {self.prefix!r}")
        while len(self._levels) > 1:
            self._leave()

    def remove(self) -> None:
        """Everything that was made."""
        for name in os.listdir(self._root):
            if stat.S_ISDIR(os.stat(name, dir_fd=self._root, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self._root)
            else:
                os.unlink(name, dir_fd=self._root)

    def close(self) -> None:
        for level in self._levels[1:]:
            os.close(level.fd)
        self._levels.clear()
        os.close(self._root)

    def _begin(self, member: Member) -> None:
        if member.path != self.prefix or member.type != tar.DIRECTORY or member.literal or member.hides:
            raise Corrupted(f"the archive has {member.path[:200]!r} where {self.prefix!r} belongs")
        self._levels.append(_Level(self._root, self.prefix, member))

    def _climb(self, member: Member) -> bytes:
        """Up to the directory of a member, all above which have come; its name in there."""
        path = member.path
        if member.type == tar.DIRECTORY:
            if path[-1:] != b"/":
                raise Corrupted(f"{path[:200]!r} in the archive is not the name of a directory")
            path = path[:-1]
        directory, slash, name = path.rpartition(b"/")
        prefix = directory + slash
        while len(self._levels) > 1 and self._levels[-1].prefix != prefix:
            self._leave()
        if self._levels[-1].prefix != prefix:
            raise Corrupted(f"{path[:200]!r} in the archive lies outside the directories before it")
        _check_name(name, path, extra=len(overlay.WHITEOUT))
        return name

    def _leave(self) -> None:
        level = self._levels.pop()
        try:
            member = level.member
            _finish(level.fd, member)
            if level.opaque:
                _set_attribute(level.fd, overlay.OPAQUE_XATTR, b"y", member)
                os.utime(level.fd, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            if level.fd != self._root:
                os.close(level.fd)

    def _mark(self, level: _Level, name: bytes, member: Member) -> None:
        """`.wh.NAME` hides a name; `.wh..wh..opq`, all of the directory below, unless it is said to hide a name."""
        if member.type != tar.FILE or member.size or member.real_size is not None or member.xattrs:
            raise Corrupted(f"{member.path[:200]!r} in the archive is a mark with something in it")
        if name == overlay.OPAQUE and not member.hides:
            if level.opaque:
                raise Corrupted(f"{member.path[:200]!r} comes twice in the archive")
            level.opaque = True
            return
        hidden = name[len(overlay.WHITEOUT) :]
        _check_name(hidden, member.path)
        try:
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=level.fd)
        except FileExistsError:
            raise Corrupted(f"{member.path[:200]!r} in the archive hides what is there") from None

    def _make(self, parent: int, name: bytes, member: Member, content: Content) -> None:
        _check_name(name, member.path)
        if member.type == tar.FILE:
            fd = os.open(name, _NEW, 0o600, dir_fd=parent)
            try:
                _fill(fd, member, content)
                _finish(fd, member)
            finally:
                os.close(fd)
        elif member.type == tar.DIRECTORY:
            if len(self._levels) == MAX_DEPTH:
                raise Corrupted(f"the archive has more than {MAX_DEPTH} levels")
            os.mkdir(name, 0o700, dir_fd=parent)
            self._levels.append(_Level(os.open(name, _HERE, dir_fd=parent), member.path, member))
        elif member.type == tar.SYMLINK:
            if not 0 < len(member.target) <= _MAX_TARGET or b"\0" in member.target or member.xattrs:
                raise Corrupted(f"{member.path[:200]!r} in the archive is an impossible link")
            os.symlink(member.target, name, dir_fd=parent)
            os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
            os.utime(name, ns=(member.mtime_ns, member.mtime_ns), dir_fd=parent, follow_symlinks=False)
        elif member.type == tar.FIFO:
            os.mkfifo(name, 0o600, dir_fd=parent)
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                _finish(fd, member)
            finally:
                os.close(fd)
        else:
            self._link(parent, name, member)

    def _link(self, parent: int, name: bytes, member: Member) -> None:
        """Another name of something of this layer, found from its root down."""
        wrong = Corrupted(f"{member.path[:200]!r} in the archive is a further name of nothing in its layer")
        if not member.target.startswith(self.prefix) or member.xattrs:
            raise wrong
        *directories, last = member.target[len(self.prefix) :].split(b"/")
        at, opened = self._root, []
        try:
            for directory in directories:
                _check_name(directory, member.path)
                at = os.open(directory, _HERE, dir_fd=at)
                opened.append(at)
            _check_name(last, member.path)
            mode = os.stat(last, dir_fd=at, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISFIFO(mode)):
                raise wrong
            os.link(last, name, src_dir_fd=at, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise wrong from None
            raise
        finally:
            for fd in opened:
                os.close(fd)


def _check_name(name: bytes, path: bytes, *, extra: int = 0) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > MAX_NAME + extra:
        raise Corrupted(f"{path[:200]!r} in the archive is not a possible name")


def _fill(fd: int, member: Member, content: Content) -> None:
    size = member.size
    if member.real_size is None:
        _copy(fd, size, content)
        return
    layout, extents = sparse.decode_map(content.layout, member.real_size)
    if len(layout) + sum(length for _, length in extents) != size:
        raise Corrupted(f"{member.path[:200]!r} in the archive has another size than its pieces")
    for start, length in extents:
        os.lseek(fd, start, os.SEEK_SET)
        _copy(fd, length, content)
    os.ftruncate(fd, member.real_size)


def _copy(fd: int, size: int, content: Content) -> None:
    while size:
        data = content.data(min(size, _WRITE))
        size -= len(data)
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, data[written:])


def _finish(fd: int, member: Member) -> None:
    """In this order: a write or a new owner takes away setuid bits and capabilities, a mode changes an ACL's mask."""
    os.fchown(fd, member.uid, member.gid)
    os.fchmod(fd, member.mode)
    for name, value in member.xattrs:
        _set_attribute(fd, name, value, member)
    os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))


def _set_attribute(fd: int, name: bytes, value: bytes, member: Member) -> None:
    try:
        os.setxattr(fd, name, value)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unsupported(
            f"{os.fsdecode(name)} cannot be set on {os.fsdecode(member.path)[:200]!r} here: {error.strerror}",
            option="xattrs",
            hint="unpack on a file system that keeps extended attributes, such as ext4 or btrfs",
        ) from error
