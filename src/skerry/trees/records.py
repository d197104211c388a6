"""The records of a tree stream, as bytes and back, without touching a file. See "Trees" in docs/design/wire.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

ENTRY, CONTENT, FILE_END, SKIPPED, TREE_END = 1, 2, 3, 4, 5
MAX_CONTENT = 131_072
MAX_RECORD = 131_072
MAX_PATH = 8191
MAX_TARGET = 4095
MAX_DEPTH = 256
MAX_SIZE = (1 << 63) - 1

_HEAD = struct.Struct("<BI")
_TWO_HEADS = struct.Struct("<BIBI")
_NUMBERS = struct.Struct("<BIqBIqBIq")
_CONTENT = struct.Struct("<BIQ")
_INT = struct.Struct("<q")
_OFFSET = struct.Struct("<Q")
_TYPES = {name: _HEAD.pack(2, len(name)) + name for name in (b"file", b"dir", b"link")}


class TreeError(ValueError):
    """A record that breaks a rule of the format."""


class Entry(NamedTuple):
    path: bytes
    """Relative, its parts checked; the root's is empty."""
    type: bytes
    mode: int
    mtime_ns: int
    size: int
    target: bytes
    same_as: bytes | None
    xattrs: tuple[tuple[bytes, bytes], ...]


class Content(NamedTuple):
    """A CONTENT, or a part of one."""

    offset: int
    data: memoryview


class FileEnd(NamedTuple):
    size: int


class SkippedRecord(NamedTuple):
    path: bytes
    reason: str


class End(NamedTuple):
    entries: int
    bytes: int


Record = Entry | Content | FileEnd | SkippedRecord | End


def encode_entry(
    path: bytes,
    type: bytes,
    mode: int,
    mtime_ns: int,
    size: int = 0,
    *,
    target: bytes = b"",
    same_as: bytes | None = None,
    xattrs: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    more = b""
    if target:
        more = _HEAD.pack(6, len(target)) + target
    if same_as is not None:
        more += _HEAD.pack(7, len(same_as)) + same_as
    for name, value in xattrs:
        more += _HEAD.pack(8, len(name) + 1 + len(value)) + name + b"\0" + value
    kind = _TYPES[type]
    length = 5 + len(path) + len(kind) + 39 + len(more)
    numbers = _NUMBERS.pack(3, 8, mode, 4, 8, mtime_ns, 5, 8, size)
    return b"".join((_TWO_HEADS.pack(ENTRY, length, 1, len(path)), path, kind, numbers, more))


def content_head(offset: int, size: int) -> bytes:
    """What comes before the bytes of a CONTENT."""
    return _CONTENT.pack(CONTENT, 8 + size, offset)


def encode_file_end(size: int) -> bytes:
    return _CONTENT.pack(FILE_END, 8, size)


def encode_skipped(path: bytes, reason: bytes) -> bytes:
    payload = _HEAD.pack(1, len(path)) + path + _HEAD.pack(2, len(reason)) + reason
    return _HEAD.pack(SKIPPED, len(payload)) + payload


def encode_end(entries: int, size: int) -> bytes:
    payload = _HEAD.pack(1, 8) + _INT.pack(entries) + _HEAD.pack(2, 8) + _INT.pack(size)
    return _HEAD.pack(TREE_END, len(payload)) + payload


class Decoder:
    """Takes a tree stream in pieces of any size and holds at most one record."""

    def __init__(self) -> None:
        self._rest = b""
        self._offset = self._left = 0
        """Of the CONTENT under way: where the next bytes go, and how many are to come."""

    @property
    def complete(self) -> bool:
        """Whether what was fed ends with the end of a record."""
        return not self._rest and not self._left

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Record]:
        """The records that are complete now; of a CONTENT also a part. Its bytes are good until the next call.

        Raises TreeError.
        """
        view = memoryview(self._rest + data if self._rest else data)
        at, size = 0, len(view)
        if self._left and size:
            at = min(self._left, size)
            yield self._content(view[:at])
        while size - at >= 5:
            kind, length = _HEAD.unpack_from(view, at)
            if length > MAX_RECORD + (8 if kind == CONTENT else 0):
                raise TreeError(f"a record of {length} bytes")
            start, end = at + 5, at + 5 + length
            if kind == CONTENT and length >= 8:
                if size - start < 8:
                    break
                self._offset, self._left = _OFFSET.unpack_from(view, start)[0], length - 8
                at = min(end, size)
                yield self._content(view[start + 8 : at])
                continue
            if end > size:
                break
            record = bytes(view[start:end])
            if kind == ENTRY:
                yield _entry(record, 0, length)
            elif kind == FILE_END and length == 8:
                yield FileEnd(_OFFSET.unpack(record)[0])
            else:
                yield _other(kind, record, 0, length)
            at = end
        self._rest = bytes(view[at:])

    def _content(self, piece: memoryview) -> Content:
        content = Content(self._offset, piece)
        self._offset += len(piece)
        self._left -= len(piece)
        return content


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    unpack = _HEAD.unpack_from
    while at < end:
        if end - at < 5:
            raise TreeError("a field's head is cut off")
        tag, length = unpack(data, at)
        at += 5
        if length > end - at:
            raise TreeError("a field that does not fit in its record")
        yield tag, data[at : at + length]
        at += length


def _number(value: bytes) -> int:
    if len(value) != 8:
        raise TreeError(f"an integer of {len(value)} bytes")
    number: int = _INT.unpack(value)[0]
    return number


def _entry(data: bytes, at: int, end: int) -> Entry:
    path: bytes | None = None
    same_as: bytes | None = None
    kind = target = b""
    numbers = [0, 0, 0]
    xattrs: list[tuple[bytes, bytes]] = []
    for tag, value in _fields(data, at, end):
        if tag == 1:
            path = value
        elif tag == 2:
            kind = value
        elif tag <= 5 and tag:
            numbers[tag - 3] = _number(value)
        elif tag == 6:
            target = value
        elif tag == 7:
            same_as = value
        elif tag == 8:
            name, nul, content = value.partition(b"\0")
            if not nul or not name.startswith(b"user."):
                raise TreeError("an attribute that is not the user's own")
            xattrs.append((name, content))
    mode, mtime_ns, size = numbers
    if path is None or kind not in _TYPES or not 0 <= mode <= 0o7777 or size < 0:
        raise TreeError("an entry without a path or a type, or with impossible numbers")
    check_path(path)
    if kind == b"link" and (not target or len(target) > MAX_TARGET or b"\0" in target):
        raise TreeError("a link without a target")
    if same_as is not None:
        if kind != b"file" or not same_as:
            raise TreeError("a second name of something that is not a file")
        check_path(same_as)
    return Entry(path, kind, mode, mtime_ns, size, target, same_as, tuple(xattrs))


def check_path(path: bytes) -> None:
    """Raises TreeError unless it is relative and without empty parts, `.`, `..` and NUL; the root's is empty."""
    if len(path) > MAX_PATH or b"\0" in path:
        raise TreeError("a path that is too long or holds a NUL")
    if not path:
        return
    for part in path.split(b"/"):
        if not part or part == b"." or part == b".." or len(part) > 255:
            raise TreeError(f"a path with the part {part[:40]!r}")


def _other(kind: int, data: bytes, at: int, end: int) -> Record:
    fields = dict(_fields(data, at, end)) if kind in (SKIPPED, TREE_END) else {}
    if kind == SKIPPED and 1 in fields and 2 in fields:
        check_path(fields[1])
        return SkippedRecord(fields[1], fields[2][:100].decode("utf-8", "replace"))
    if kind == TREE_END and 1 in fields and 2 in fields:
        return End(_number(fields[1]), _number(fields[2]))
    raise TreeError(f"a malformed record of kind {kind}")
