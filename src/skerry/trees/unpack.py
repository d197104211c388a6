"""A tree stream becomes a local file or directory, written by blocking code in a thread.

Nothing of the sandbox is trusted: every path is checked, no link is ever followed, and everything is built in a new
directory that only this user can enter before it takes its place.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

from skerry.core import IsADirectory, NotADirectory, Skipped
from skerry.trees.pack import Tally
from skerry.trees.records import MAX_DEPTH, MAX_SIZE, Content, Decoder, End, Entry, FileEnd, TreeError

_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_SKIPPED = 100_000
MAX_PIECES = 64


@dataclass
class _Level:
    fd: int
    prefix: bytes
    """The path of what is in here, with its slash."""
    fresh: bool
    mode: int
    mtime_ns: int


class Unpacker:
    """Feed it the stream, then `commit`; `close` in any case."""

    def __init__(self, local: str, *, merge: bool) -> None:
        self.tally = Tally()
        self._path = os.path.abspath(local)
        directory, self._name = os.path.split(self._path)
        self._merge = merge
        self._decoder = Decoder()
        self._levels: list[_Level] = []
        self._file = -1
        self._pieces: list[memoryview] = []
        """Content of the file that is not written yet."""
        self._entry: Entry | None = None
        self._at = 0
        self._is_file = self._ended = False
        self._umask = _umask()
        self._now = time.time_ns()
        self._parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._base, self._temp, self._temp_fd = self._parent, "", -1

    def feed(self, *parts: bytes | bytearray | memoryview) -> None:
        """Raises TreeError for what breaks the format, OSError for what the local disk refuses."""
        for part in parts:
            self._feed(part)
            if len(self._pieces) > MAX_PIECES:
                self._write()
        self._write()

    def _feed(self, data: bytes | bytearray | memoryview) -> None:
        for record in self._decoder.feed(data):
            if self._ended:
                raise TreeError("a record after the end of the tree")
            if isinstance(record, Content):
                self._on_content(record)
            elif isinstance(record, FileEnd):
                self._on_file_end(record.size)
            elif self._file >= 0:
                raise TreeError("a file without an end")
            elif isinstance(record, Entry):
                self._on_entry(record)
            elif isinstance(record, End):
                self._on_end(record)
            elif len(self.tally.skipped) < MAX_SKIPPED:
                self.tally.skipped.append(Skipped(path=os.fsdecode(record.path), reason=record.reason))

    def _on_entry(self, entry: Entry) -> None:
        tally, path = self.tally, entry.path
        tally.entries += 1
        self._entry, self._at = entry, 0
        if tally.entries == 1:
            self._begin(entry)
            name = ""
        elif self._is_file or not path:
            raise TreeError("an entry that is in no directory")
        else:
            name = self._climb(path)
        if entry.type == b"dir":
            tally.directories += 1
            if name:
                self._enter(name, self._levels[-1].fd, entry)
        elif entry.type == b"link":
            tally.links += 1
            self._place(name, lambda at, fd: self._make_link(at, fd, entry))
        else:
            tally.files += 1
            if entry.same_as is not None:
                source = entry.same_as
                self._place(name, lambda at, fd: self._make_again(at, fd, source))
            elif name:
                fd = self._temp_fd if self._merge else self._levels[-1].fd
                self._open("part" if self._merge else name, fd, entry)

    def _climb(self, path: bytes) -> str:
        """Up to the directory of `path`, all above which have come; the name in there."""
        directory, slash, name = path.rpartition(b"/")
        prefix = directory + slash
        while len(self._levels) > 1 and self._levels[-1].prefix != prefix:
            self._leave()
        if self._levels[-1].prefix != prefix:
            raise TreeError("an entry outside the directory that is being filled")
        return os.fsdecode(name)

    def _begin(self, entry: Entry) -> None:
        if entry.path or entry.type == b"link" or entry.same_as is not None:
            raise TreeError("a tree without a root")
        self._is_file = entry.type == b"file"
        try:
            old = os.lstat(self._name or ".", dir_fd=self._parent)
        except FileNotFoundError:
            old = None
        if old is not None and self._is_file and stat.S_ISDIR(old.st_mode):
            raise IsADirectory(f"{self._path} is a directory", hint="name the file to write")
        if old is not None and not self._is_file and not stat.S_ISDIR(old.st_mode):
            raise NotADirectory(f"{self._path} is not a directory", hint="remove it first, or name another place")
        if self._merge and not self._is_file:
            self._enter(self._name or ".", self._parent, entry)
            self._base = os.dup(self._levels[0].fd)
            self._make_temp()
            return
        if old is not None and not self._is_file and self._must_stay():
            self._base = os.open(self._name or ".", _HERE, dir_fd=self._parent)
        self._make_temp()
        if self._is_file:
            self._open("new", self._temp_fd, entry)
        else:
            self._enter("new", self._temp_fd, entry)

    def _must_stay(self) -> bool:
        """A directory that cannot be replaced by another one: its content is exchanged."""
        here = os.path.samefile(self._path, os.getcwd())
        return here or os.path.ismount(self._path) or not os.access(".", os.W_OK, dir_fd=self._parent)

    def _make_temp(self) -> None:
        self._temp = f".skerry-{secrets.token_hex(6)}"
        os.mkdir(self._temp, 0o700, dir_fd=self._base)
        self._temp_fd = os.open(self._temp, _HERE, dir_fd=self._base)

    def _enter(self, name: str, parent: int, entry: Entry) -> None:
        if len(self._levels) == MAX_DEPTH:
            raise TreeError(f"more than {MAX_DEPTH} levels")
        fresh = True
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._merge:
                raise TreeError("a name that comes twice") from None
            fresh = False
        fd = os.open(name, _HERE, dir_fd=parent)
        prefix = entry.path + b"/" if entry.path else b""
        self._levels.append(_Level(fd, prefix, fresh, entry.mode & 0o777, entry.mtime_ns))
        if fresh and entry.xattrs:
            self._set_xattrs(fd, entry)

    def _leave(self) -> None:
        level = self._levels.pop()
        try:
            if level.fresh:
                self._finish_directory(level.fd, level)
        finally:
            os.close(level.fd)

    def _finish_directory(self, fd: int, level: _Level) -> None:
        os.fchmod(fd, level.mode)
        os.utime(fd, ns=(self._now, level.mtime_ns))

    def _open(self, name: str, parent: int, entry: Entry) -> None:
        mode = entry.mode & 0o777
        try:
            self._file = os.open(name, _NEW, mode, dir_fd=parent)
        except FileExistsError:
            raise TreeError("a name that comes twice") from None
        if mode & self._umask:
            os.fchmod(self._file, mode)
        if entry.xattrs:
            self._set_xattrs(self._file, entry)

    def _set_xattrs(self, fd: int, entry: Entry) -> None:
        for name, value in entry.xattrs:
            try:
                os.setxattr(fd, name, value)
            except OSError:
                self.tally.xattrs_lost += 1

    def _make_link(self, name: str, fd: int, entry: Entry) -> None:
        os.symlink(os.fsdecode(entry.target), name, dir_fd=fd)
        os.utime(name, ns=(self._now, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)

    def _make_again(self, name: str, fd: int, source: bytes) -> None:
        """Another name of a file of this tree, found from its root down."""
        *directories, last = (os.fsdecode(part) for part in source.split(b"/"))
        with contextlib.ExitStack() as opened:
            at = self._levels[0].fd
            try:
                for directory in directories:
                    at = os.open(directory, _HERE, dir_fd=at)
                    opened.callback(os.close, at)
                if not stat.S_ISREG(os.lstat(last, dir_fd=at).st_mode):
                    raise TreeError("a second name of something that is not a file")
            except OSError:
                raise TreeError("a second name of a file that is not there") from None
            os.link(last, name, src_dir_fd=at, dst_dir_fd=fd, follow_symlinks=False)

    def _place(self, name: str, make: Callable[[str, int], None]) -> None:
        """In a new tree the name is free; a merge makes the entry elsewhere first."""
        level = self._levels[-1].fd
        if self._merge:
            make("part", self._temp_fd)
            self._settle(name, level)
            return
        try:
            make(name, level)
        except FileExistsError:
            raise TreeError("a name that comes twice") from None

    def _settle(self, name: str, level: int) -> None:
        os.rename("part", name, src_dir_fd=self._temp_fd, dst_dir_fd=level)
        # Between two names of one file a rename does nothing.
        with contextlib.suppress(FileNotFoundError):
            os.unlink("part", dir_fd=self._temp_fd)

    def _on_content(self, content: Content) -> None:
        offset, data = content
        size = len(data)
        if self._file < 0 or offset < self._at or offset + size > MAX_SIZE:
            raise TreeError("content that belongs to no file")
        if offset != self._at:
            self._write()
            os.lseek(self._file, offset, os.SEEK_SET)
        self._pieces.append(data)
        self.tally.done += offset + size - self._at
        self._at = offset + size
        self.tally.bytes += size

    def _write(self) -> None:
        """Write the content that has come since the last time, with few system calls."""
        while self._pieces:
            written = os.writev(self._file, self._pieces[:MAX_PIECES])
            while self._pieces and written >= len(self._pieces[0]):
                written -= len(self._pieces.pop(0))
            if written:
                self._pieces[0] = self._pieces[0][written:]

    def _on_file_end(self, size: int) -> None:
        entry, fd = self._entry, self._file
        if fd < 0 or entry is None or not self._at <= size <= MAX_SIZE:
            raise TreeError("an end that belongs to no file")
        self._write()
        if size != self._at:
            os.ftruncate(fd, size)
            self.tally.done += size - self._at
        os.utime(fd, ns=(self._now, entry.mtime_ns))
        self._file = -1
        os.close(fd)
        if self._merge and not self._is_file:
            self._settle(os.fsdecode(entry.path.rpartition(b"/")[2]), self._levels[-1].fd)

    def _on_end(self, end: End) -> None:
        self._ended = True
        if not self.tally.entries or (end.entries, end.bytes) != (self.tally.entries, self.tally.bytes):
            raise TreeError("an end that does not count what came before it")

    def commit(self) -> None:
        """Put everything in its place. Raises TreeError when the stream was not complete."""
        if not self._ended or not self._decoder.complete:
            raise TreeError("a tree without an end")
        while len(self._levels) > (0 if self._merge else 1):
            self._leave()
        if self._is_file:
            if os.path.isdir(self._path) and not os.path.islink(self._path):
                raise IsADirectory(f"{self._path} is a directory")
            os.rename("new", self._name, src_dir_fd=self._temp_fd, dst_dir_fd=self._parent)
        elif not self._merge:
            self._exchange_children() if self._base != self._parent else self._exchange()

    def _exchange(self) -> None:
        root = self._levels[0]
        moved = True
        try:
            os.rename(self._name, "old", src_dir_fd=self._parent, dst_dir_fd=self._temp_fd)
        except FileNotFoundError:
            moved = False
        try:
            os.rename("new", self._name, src_dir_fd=self._temp_fd, dst_dir_fd=self._parent)
        except BaseException:
            if moved:
                os.rename("old", self._name, src_dir_fd=self._temp_fd, dst_dir_fd=self._parent)
            raise
        self._finish_directory(root.fd, root)

    def _exchange_children(self) -> None:
        os.mkdir("old", 0o700, dir_fd=self._temp_fd)
        old = os.open("old", _HERE, dir_fd=self._temp_fd)
        root = self._levels[0]
        done: list[tuple[str, int, int]] = []
        try:
            for source, target in ((self._base, old), (root.fd, self._base)):
                for name in os.listdir(source):
                    if name != self._temp or source != self._base:
                        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
                        done.append((name, source, target))
        except BaseException:
            for name, source, target in reversed(done):
                os.rename(name, name, src_dir_fd=target, dst_dir_fd=source)
            raise
        finally:
            os.close(old)
        with contextlib.suppress(PermissionError):
            self._finish_directory(self._base, root)

    def close(self) -> None:
        """Remove whatever is not in its place."""
        if self._file >= 0:
            os.close(self._file)
        while self._levels:
            os.close(self._levels.pop().fd)
        if self._temp_fd >= 0:
            os.close(self._temp_fd)
        if self._temp:
            _remove(self._temp, self._base)
        if self._base != self._parent:
            os.close(self._base)
        os.close(self._parent)


def _remove(name: str, parent: int) -> None:
    """A directory and all in it, whatever its modes."""
    try:
        fd = os.open(name, _HERE, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        fd = os.open(name, _HERE, dir_fd=parent)
    try:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, 0o700)
        with os.scandir(fd) as found:
            entries = [(item.name, item.is_dir(follow_symlinks=False)) for item in found]
        for inner, is_directory in entries:
            if is_directory:
                _remove(inner, fd)
            else:
                os.unlink(inner, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _umask() -> int:
    """The process's, without changing it for a moment."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o777
