"""Tree streams for the agent's tests: records by hand, packed and unpacked over a plain connection."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skerry import wire
from skerry.wire import Type
from tests.agent.driver.client import BIG, AgentError, Connection

ENTRY, CONTENT, FILE_END, SKIPPED, TREE_END = 1, 2, 3, 4, 5
MERGE, PARENTS, NEW = 1, 2, 4


def record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<BI", kind, len(payload)) + payload


def entry(path: bytes, type: str = "file", **more: Any) -> bytes:
    more.setdefault("mode", 0o755 if type == "dir" else 0o644)
    return record(ENTRY, wire.TreeEntry(path=path, type_name=type, **more).encode())


def content(data: bytes, offset: int = 0) -> bytes:
    return record(CONTENT, struct.pack("<Q", offset) + data)


def file_end(size: int) -> bytes:
    return record(FILE_END, struct.pack("<Q", size))


def file(path: bytes, data: bytes = b"", **more: Any) -> bytes:
    return entry(path, **more) + (content(data) if data else b"") + file_end(len(data))


def tree_end(entries: int, size: int) -> bytes:
    return record(TREE_END, wire.TreeEnd(entries=entries, content_bytes=size).encode())


def root(*entries: bytes, size: int = 0, **more: Any) -> bytes:
    """A directory with these entries, one record group each, and the right end."""
    return entry(b"", "dir", **more) + b"".join(entries) + tree_end(1 + len(entries), size)


@dataclass
class Packed:
    first: wire.TreeInfo
    last: wire.TreeInfo
    records: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def entries(self) -> dict[bytes, wire.TreeEntry]:
        return {e.path: e for k, p in self.records if k == ENTRY for e in [wire.TreeEntry.decode(p)]}

    @property
    def skipped(self) -> dict[bytes, str]:
        return {s.path: s.reason for k, p in self.records if k == SKIPPED for s in [wire.TreeSkipped.decode(p)]}

    def pieces(self, path: bytes) -> tuple[dict[int, bytes], int]:
        """The contents of a file by offset, and its size."""
        found, here = {}, False
        for kind, payload in self.records:
            if kind == ENTRY:
                here = wire.TreeEntry.decode(payload).path == path
            elif here and kind == CONTENT:
                found[struct.unpack_from("<Q", payload)[0]] = payload[8:]
            elif here and kind == FILE_END:
                return found, struct.unpack("<Q", payload)[0]
        raise AssertionError(path)

    def stream(self) -> bytes:
        return b"".join(record(*item) for item in self.records)


def pack(connection: Connection, path: bytes | str, **options: Any) -> Packed:
    options.setdefault("window", BIG)
    stream = connection.open(wire.Pack(path=os.fsencode(path), **options))
    first = connection.reply(stream, wire.TreeInfo, final=False)
    parts: list[bytes] = []
    while True:
        frame = connection.next(stream)
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        assert frame.type == Type.DATA
        offset, data = wire.parse_data(frame.payload)
        assert offset == sum(map(len, parts))
        parts.append(bytes(data))
        assert len(data) <= options["window"]
        if frame.flags & wire.END:
            break
        connection.credit(stream, 0, len(data))
    packed = Packed(first, connection.reply(stream, wire.TreeInfo))
    data, at = b"".join(parts), 0
    while at < len(data):
        kind, length = struct.unpack_from("<BI", data, at)
        packed.records.append((kind, data[at + 5 : at + 5 + length]))
        at += 5 + length
    end = wire.TreeEnd.decode(packed.records[-1][1])
    assert (packed.records[-1][0], end.entries, end.content_bytes) == (
        TREE_END,
        len(packed.entries),
        packed.last.content_bytes,
    )
    return packed


def unpack(
    connection: Connection, path: bytes | str, data: bytes, *, pieces: Iterable[bytes] = (), flags: int = 0
) -> wire.TreeInfo:
    stream = connection.open(wire.Unpack(path=os.fsencode(path), flags=flags))
    credit, sent = wire.INPUT_WINDOW, 0
    for piece in pieces or [data[i : i + 100_000] for i in range(0, len(data), 100_000)]:
        while credit < len(piece):
            credit += connection.take_credit(stream)
        connection.data(stream, piece, offset=sent)
        credit -= len(piece)
        sent += len(piece)
    connection.data(stream, b"", offset=sent, end=True)
    return connection.reply(stream, wire.TreeInfo)


def look(top: Path) -> dict[str, tuple[Any, ...]]:
    """What a tree is, for comparing: type, mode, time and content of everything in it."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, directories, files in os.walk(top):
        for name in [".", *directories, *files]:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            what: Any = os.readlink(path) if os.path.islink(path) else None
            if what is None and os.path.isfile(path):
                what = Path(path).read_bytes()
            found[os.path.relpath(path, top)] = (oct(info.st_mode), info.st_mtime_ns, what)
    return found


def tree_hash(top: Path) -> bytes:
    """What HASH says of a tree."""
    whole = hashlib.sha256()

    def add(path: Path, name: bytes) -> None:
        info = os.lstat(path)
        mode, rest = b"%o" % stat.S_IMODE(info.st_mode), b""
        if path.is_symlink():
            kind, rest = b"link", os.fsencode(os.readlink(path))
        elif path.is_dir():
            kind, mode = b"dir", mode if name else b"0"
        else:
            with path.open("rb") as content:
                kind, rest = b"file", hashlib.file_digest(content, "sha256").digest()
        whole.update(hashlib.sha256(b"\0".join((name, kind, mode, rest))).digest())
        if kind == b"dir":
            for child in sorted(path.iterdir(), key=lambda p: os.fsencode(p.name)):
                add(child, (name + b"/" if name else b"") + os.fsencode(child.name))

    add(top, b"")
    return whole.digest()
