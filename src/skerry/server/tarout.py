"""The records of a tree as a tar stream, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from skerry.archive.tar import DIRECTORY, END, FILE, LINK, SYMLINK, Member, encode, padding
from skerry.core.errors import Conflict
from skerry.sdk.trees import Content, Entry, FileEnd, Record

ZEROS = bytes(1 << 16)
_TYPES = {b"file": FILE, b"dir": DIRECTORY, b"link": SYMLINK}


class TarEncoder:
    """Feed it every record of a tree; holes become zeros, what the tree leaves out is left out."""

    def __init__(self, name: bytes) -> None:
        """`name` is what a tree that is a single file is called; in a directory names are relative to it."""
        self._name = name
        self._size = self._at = 0

    def feed(self, record: Record) -> Iterator[bytes]:
        """Raises Conflict for a file that became shorter while it was read: its header has been sent."""
        if isinstance(record, Entry):
            self._size, self._at = record.size, 0
            yield encode(self._member(record))
        elif isinstance(record, Content):
            yield from self._zeros(record.offset)
            self._at += len(record.data)
            yield bytes(record.data)
        elif isinstance(record, FileEnd):
            if record.size != self._size:
                raise Conflict("a file became shorter while it was read", hint="read again")
            yield from self._zeros(record.size)
            yield padding(record.size)

    def _zeros(self, end: int) -> Iterator[bytes]:
        while self._at < end:
            part = ZEROS[: end - self._at]
            self._at += len(part)
            yield part

    def _member(self, entry: Entry) -> Member:
        path = entry.path or (b"." if entry.type == b"dir" else self._name)
        plain = entry.type == b"file" and entry.same_as is None
        return Member(
            path=path + b"/" if entry.type == b"dir" else path,
            type=LINK if entry.same_as is not None else _TYPES[entry.type],
            mode=entry.mode,
            mtime_ns=entry.mtime_ns,
            size=entry.size if plain else 0,
            target=entry.target if entry.same_as is None else entry.same_as,
            xattrs=entry.xattrs,
        )


async def tar_stream(records: AsyncIterator[Record], name: bytes) -> AsyncIterator[bytes]:
    """Raises what `records` does, and Conflict."""
    encoder = TarEncoder(name)
    async for record in records:
        for part in encoder.feed(record):
            yield part
    yield END
