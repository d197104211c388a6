"""A layer becomes members of the archive."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable

from skerry.archive.ledger import BLOCK_BYTES, Ledger
from skerry.core import Unsupported
from skerry.trees import Found, Member, changed, overlay, sparse, tar, walk_tree

_BATCH = 512 * 1024
_READ = 512 * 1024
_TYPES = {
    stat.S_IFREG: tar.FILE,
    stat.S_IFDIR: tar.DIRECTORY,
    stat.S_IFLNK: tar.SYMLINK,
    stat.S_IFIFO: tar.FIFO,
}


class Packer:
    """Members in, the tar stream out to `write` in batches; `ledger` counts."""

    def __init__(
        self, write: Callable[[bytes], None], on_progress: Callable[[int], None] | None, *, max_id: int
    ) -> None:
        self.ledger = Ledger()
        self._write = write
        self._on_progress = on_progress
        self._max_id = max_id
        self._batch: list[bytes] = []
        self._size = 0

    def layer(self, root: int, prefix: bytes) -> None:
        """Add all of a directory, and close it. Raises Unsupported, Conflict or OSError."""
        first: dict[tuple[int, int], bytes] = {}  # where a file with several names was met first
        with contextlib.closing(walk_tree(root)) as entries:
            for found in entries:
                self._entry(found, prefix + found.path, first)

    def _entry(self, found: Found, path: bytes, first: dict[tuple[int, int], bytes]) -> None:
        info = found.info
        kind = stat.S_IFMT(info.st_mode)
        if found.whiteout:
            directory, slash, name = path.rpartition(b"/")
            mark = overlay.WHITEOUT + name
            self._mark(directory + slash + mark, hides=mark == overlay.OPAQUE)
            return
        if kind == stat.S_IFSOCK:
            self.ledger.skipped += 1
            return
        if info.st_nlink > 1 and kind != stat.S_IFDIR:
            known = first.setdefault((info.st_dev, info.st_ino), path)
            if known is not path:
                self._empty(self._member(path, tar.LINK, info, target=known))
                return
        if kind == stat.S_IFREG:
            self._file(found, path)
        else:
            self._other(found, path, _TYPES[kind])

    def plain(self, path: bytes, data: bytes) -> None:
        """Add a member that describes the archive itself; it is in the ledger too."""
        header = tar.encode(Member(path, tar.FILE, size=len(data)))
        self.ledger.add(path, header, hashlib.sha256(data))
        self._put(header, data, tar.padding(len(data)))

    def end_block(self) -> None:
        """Write out what is in the ledger."""
        path, data = self.ledger.close_block()
        self._put(tar.encode(Member(path, tar.FILE, size=len(data))), data, tar.padding(len(data)))

    def end(self, path: bytes, data: bytes) -> None:
        """The last member and the end of the stream."""
        self._put(tar.encode(Member(path, tar.FILE, size=len(data))), data, tar.padding(len(data)), tar.END)
        self._flush()

    def _member(
        self,
        path: bytes,
        type: bytes,
        info: os.stat_result,
        *,
        size: int = 0,
        target: bytes = b"",
        xattrs: tuple[tuple[bytes, bytes], ...] = (),
        real_size: int | None = None,
    ) -> Member:
        if info.st_uid > self._max_id or info.st_gid > self._max_id:
            raise Unsupported(
                f"{os.fsdecode(path)!r} belongs to {info.st_uid}:{info.st_gid}, which no sandbox has",
                option="owner",
                hint=f"ids up to {self._max_id} are kept",
            )
        literal = overlay.needs_escape(path.rstrip(b"/").rpartition(b"/")[2])
        mode = stat.S_IMODE(info.st_mode)
        ids = (info.st_uid, info.st_gid, info.st_mtime_ns)
        return Member(path, type, mode, *ids, size, target, xattrs, literal, real_size)

    def _other(self, found: Found, path: bytes, type: bytes) -> None:
        target, attributes = b"", overlay.Attributes()
        if type == tar.SYMLINK:
            target = os.fsencode(os.readlink(found.name, dir_fd=found.parent))
        elif type == tar.DIRECTORY:
            attributes = overlay.read_attributes(found.fd, found.path)
            path = path + b"/" if found.path else path
        else:
            attributes = overlay.read_attributes(f"/proc/self/fd/{found.parent}/{found.name}", found.path)
        self._empty(self._member(path, type, found.info, target=target, xattrs=attributes.kept))
        if attributes.opaque:
            self._mark(path + overlay.OPAQUE)

    def _mark(self, path: bytes, *, hides: bool = False) -> None:
        header = tar.encode(Member(path, tar.FILE, 0, hides=hides))
        self.ledger.add(path, header, None)
        self.ledger.count(tar.FILE, whiteout=True)
        self._put(header)
        self._step()

    def _empty(self, member: Member) -> None:
        header = tar.encode(member)
        self.ledger.add(member.path, header, None)
        self.ledger.count(member.type, whiteout=False)
        self._put(header)
        self._step()

    def _file(self, found: Found, path: bytes) -> None:
        fd, info = found.fd, found.info
        kept = overlay.read_attributes(fd, found.path).kept
        size = info.st_size
        # Counting blocks would not do: a file may have holes and blocks reserved after its end.
        extents = sparse.find_extents(fd, size) if size else [(0, 0)]
        content = hashlib.sha256()
        if extents == [(0, size)]:
            stored = size
            header = tar.encode(self._member(path, tar.FILE, info, size=size, xattrs=kept))
            self._put(header)
        else:
            layout = sparse.encode_map(extents, size)
            stored = len(layout) + sum(length for _, length in extents)
            header = tar.encode(self._member(path, tar.FILE, info, size=stored, xattrs=kept, real_size=size))
            content.update(layout)
            self._put(header, layout)
        for start, length in extents:
            self._content(found, start, length, content)
        after = os.fstat(fd)
        if (after.st_size, after.st_mtime_ns) != (size, info.st_mtime_ns):
            raise changed(found.path)
        self._put(tar.padding(stored))
        self.ledger.add(path, header, content)
        self.ledger.count(tar.FILE, whiteout=False)
        self._step()

    def _content(self, found: Found, at: int, length: int, content: hashlib._Hash) -> None:
        while length:
            data = os.pread(found.fd, min(length, _READ), at)
            if not data:
                raise changed(found.path)
            content.update(data)
            at += len(data)
            length -= len(data)
            self.ledger.content_bytes += len(data)
            self._put(data)

    def _put(self, *parts: bytes) -> None:
        for part in parts:
            self._batch.append(part)
            self._size += len(part)
        if self._size >= _BATCH:
            self._flush()

    def _step(self) -> None:
        """After each entry."""
        if self.ledger.pending_bytes >= BLOCK_BYTES:
            self.end_block()

    def _flush(self) -> None:
        self._write(b"".join(self._batch))
        self._batch.clear()
        self._size = 0
        if self._on_progress is not None:
            self._on_progress(self.ledger.content_bytes)
