"""The records of a tree as a tar stream, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from skerry.core import Conflict, Corrupted
from skerry.trees.records import Content, Entry, FileEnd, Record
from skerry.trees.tar import DIRECTORY, END, FILE, LINK, SYMLINK, Member, encode, padding

ZEROS = bytes(1 << 16)
_TYPES = {b"file": FILE, b"dir": DIRECTORY, b"link": SYMLINK}


class TarEncoder:
    """Feed it every record of a tree; holes become zeros, what the tree leaves out is left out.

    The records come from inside a sandbox: none gets where a reader would take its bytes for another member.
    """

    def __init__(self, name: bytes) -> None:
        """`name` is what a tree that is a single file is called; in a directory names are relative to it."""
        self._name = name
        self._size: int | None = None
        """Of the file at hand, as its header says; None: there is none."""
        self._at = 0

    def feed(self, record: Record) -> Iterator[bytes]:
        """Raises Conflict for a file with another size than its header, which has been sent; Corrupted."""
        if isinstance(record, Content | FileEnd) == (self._size is None):
            raise Corrupted("the sandbox sent a tree whose records are out of order")
        if isinstance(record, Entry):
            plain = record.type == b"file" and record.same_as is None
            self._size, self._at = record.size if plain else None, 0
            yield encode(self._member(record))
        elif isinstance(record, Content):
            if record.offset < self._at:
                raise Corrupted("the sandbox sent a part of a file twice")
            self._check(record.offset + len(record.data) <= (self._size or 0))
            yield from self._zeros(record.offset)
            self._at += len(record.data)
            yield bytes(record.data)
        elif isinstance(record, FileEnd):
            self._check(record.size == self._size)
            yield from self._zeros(record.size)
            yield padding(record.size)
            self._size = None

    @staticmethod
    def _check(fits: bool) -> None:
        if not fits:
            raise Conflict("a file has another size than when it was opened", hint="read again")

    def _zeros(self, end: int) -> Iterator[bytes]:
        while self._at < end:
            part = ZEROS[: end - self._at]
            self._at += len(part)
            yield part

    def _member(self, entry: Entry) -> Member:
        path = entry.path or (b"." if entry.type == b"dir" else self._name)
        return Member(
            path=path + b"/" if entry.type == b"dir" else path,
            type=LINK if entry.same_as is not None else _TYPES[entry.type],
            mode=entry.mode,
            mtime_ns=entry.mtime_ns,
            size=self._size or 0,
            target=entry.target if entry.same_as is None else entry.same_as,
            xattrs=entry.xattrs,
        )


async def tar_stream(records: AsyncIterator[Record], name: bytes) -> AsyncIterator[bytes]:
    """Raises what `records` does, Conflict and Corrupted."""
    encoder = TarEncoder(name)
    async for record in records:
        for part in encoder.feed(record):
            yield part
    yield END
