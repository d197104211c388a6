"""A local file or directory as a tree stream, made by blocking code in a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field

from skerry.core import InvalidArgument, Skipped
from skerry.trees.records import (
    MAX_CONTENT,
    content_head,
    encode_end,
    encode_entry,
    encode_file_end,
    encode_skipped,
)
from skerry.trees.walk import Found, walk_tree

CONTENT_HEAD = len(content_head(0, 0))
RECORD = CONTENT_HEAD + MAX_CONTENT
BATCH = 8 * RECORD
MAX_HARD_LINKS = 100_000
XATTR_BYTES = 100_000
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass
class Tally:
    """What has been packed or unpacked so far."""

    entries: int = 0
    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    """Of content: holes do not count."""
    done: int = 0
    """Sizes of files as far as they have come, holes and all."""
    xattrs_lost: int = 0
    skipped: list[Skipped] = field(default_factory=list)


class Packer:
    """`batches` gives the stream in pieces of about a megabyte; `tally` is what they held."""

    def __init__(self, local: str, exclude: Collection[str]) -> None:
        self.tally = Tally()
        self._local = local
        self._exclude = frozenset(exclude)
        self._first: dict[tuple[int, int], bytes] = {}
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._buffer, self._other = (memoryview(bytearray(BATCH + RECORD)) for _ in range(2))
        """Where content is read to; used in turn, so that no memory is new."""
        self._used = 0

    def batches(self) -> Generator[bytes | memoryview, None, None]:
        """A batch is good until the one after the next is made.

        Raises OSError for what cannot be read, InvalidArgument for what is neither a file nor a directory."""
        info = os.stat(self._local)
        if stat.S_ISDIR(info.st_mode):
            root = os.open(self._local, _DIRECTORY)
            with contextlib.closing(walk_tree(root, exclude=self._exclude, left_out=self._skip)) as entries:
                for found in entries:
                    yield from self._entry(found)
                    if self._size >= BATCH:
                        yield self._flush()
        elif stat.S_ISREG(info.st_mode):
            with open(self._local, "rb", buffering=0, opener=_open_file) as file:
                yield from self._file(file.fileno(), b"", os.fstat(file.fileno()))
        else:
            raise InvalidArgument(f"{self._local} is neither a file nor a directory")
        self._put(encode_end(self.tally.entries, self.tally.bytes))
        yield self._flush()

    def _entry(self, found: Found) -> Iterator[bytes | memoryview]:
        path, info, kind = found.path, found.info, stat.S_IFMT(found.info.st_mode)
        if kind == stat.S_IFDIR:
            self._directory(found)
        elif kind == stat.S_IFLNK:
            self._link(found)
        elif info.st_nlink > 1 and (first := self._first.get((info.st_dev, info.st_ino))):
            self._again(path, info, first)
        else:
            yield from self._file(found.fd, path, info)

    def _directory(self, found: Found) -> None:
        info, attributes = found.info, self._xattrs(found.fd)
        self._put(encode_entry(found.path, b"dir", stat.S_IMODE(info.st_mode), info.st_mtime_ns, xattrs=attributes))
        self.tally.entries += 1
        self.tally.directories += 1

    def _link(self, found: Found) -> None:
        path, info = found.path, found.info
        try:
            target = os.fsencode(os.readlink(found.name, dir_fd=found.parent))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):  # gone, or no longer a link
                raise
            self._skip(path, "vanished")
            return
        self._put(encode_entry(path, b"link", stat.S_IMODE(info.st_mode), info.st_mtime_ns, target=target))
        self.tally.entries += 1
        self.tally.links += 1

    def _again(self, path: bytes, info: os.stat_result, first: bytes) -> None:
        mode = stat.S_IMODE(info.st_mode)
        self._put(encode_entry(path, b"file", mode, info.st_mtime_ns, info.st_size, same_as=first))
        self.tally.entries += 1
        self.tally.files += 1

    def _file(self, fd: int, path: bytes, info: os.stat_result) -> Iterator[bytes | memoryview]:
        if info.st_nlink > 1 and path and len(self._first) < MAX_HARD_LINKS:
            self._first[info.st_dev, info.st_ino] = path
        size, mode = info.st_size, stat.S_IMODE(info.st_mode)
        attributes = self._xattrs(fd)
        self._put(encode_entry(path, b"file", mode, info.st_mtime_ns, size, xattrs=attributes))
        self.tally.entries += 1
        self.tally.files += 1
        if size > MAX_CONTENT or info.st_blocks * 512 < size:
            yield from self._content(fd, size, sparse=info.st_blocks * 512 < size)
        else:
            # A file without a size may still have content, as those of /proc do.
            data = os.read(fd, size or MAX_CONTENT)
            if data:
                self._put(content_head(0, len(data)))
                self._put(data)
            self._put(encode_file_end(len(data)))
            self.tally.bytes += len(data)
            self.tally.done += len(data)

    def _content(self, fd: int, end: int, *, sparse: bool) -> Iterator[bytes | memoryview]:
        """What the file grew by since it was opened is not read: it might never end."""
        at = last = 0
        before = self.tally.done
        while at < end:
            at, stop = _data_range(fd, at, end) if sparse else (at, end)
            while at < stop:
                room = self._buffer[self._used : self._used + RECORD]
                size = os.preadv(fd, [room[CONTENT_HEAD : CONTENT_HEAD + stop - at]], at)
                if not size:
                    end = stop = at
                    break
                room[:CONTENT_HEAD] = content_head(at, size)
                self._put(room[: CONTENT_HEAD + size])
                self._used += CONTENT_HEAD + size
                at = last = at + size
                self.tally.bytes += size
                self.tally.done = before + at
                if self._size >= BATCH:
                    yield self._flush()
        size = max(last, min(end, os.fstat(fd).st_size))
        self._put(encode_file_end(size))
        self.tally.done = before + size

    def _xattrs(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        try:
            names = os.listxattr(fd)
        except OSError:
            return ()
        found, room = [], XATTR_BYTES
        for name in names:
            if not name.startswith("user."):
                continue
            try:
                pair = (os.fsencode(name), os.getxattr(fd, name))
            except OSError:
                pair = (b"", b"")
            room -= len(pair[0]) + len(pair[1])
            if not pair[0] or room < 0:
                self.tally.xattrs_lost += 1
                continue
            found.append(pair)
        return tuple(found)

    def _skip(self, path: bytes, reason: str) -> None:
        self.tally.skipped.append(Skipped(path=os.fsdecode(path), reason=reason))
        self._put(encode_skipped(path, reason.encode()))

    def _put(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._size += len(data)

    def _flush(self) -> bytes | memoryview:
        """All parts in one piece; where there is but content, this is the buffer itself, and the other one's turn."""
        batch = self._buffer[: self._used] if self._size == self._used else b"".join(self._parts)
        self._buffer, self._other = self._other, self._buffer
        self._parts.clear()
        self._size = self._used = 0
        return batch


def _data_range(fd: int, at: int, end: int) -> tuple[int, int]:
    """Where the next bytes that are not a hole begin and stop."""
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, end), min(os.lseek(fd, start, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end, end


def count_tree(local: str, exclude: Collection[str]) -> int:
    """The sizes of all files, each inode once. Raises OSError for what cannot be read."""
    info = os.stat(local)
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size
    total = 0
    seen: set[tuple[int, int]] = set()
    for found in walk_tree(os.open(local, _DIRECTORY), exclude=exclude, left_out=_ignore, sizes_only=True):
        info = found.info
        if not stat.S_ISREG(info.st_mode) or (info.st_nlink > 1 and (info.st_dev, info.st_ino) in seen):
            continue
        if info.st_nlink > 1 and len(seen) < MAX_HARD_LINKS:
            seen.add((info.st_dev, info.st_ino))
        total += info.st_size
    return total


def _ignore(_path: bytes, _reason: str) -> None:
    pass


def _open_file(path: str, _flags: int) -> int:
    return os.open(path, _FILE)
