"""Members of a tar stream as bytes: ustar headers with PAX records, written in one form."""

from __future__ import annotations

import functools
from typing import NamedTuple

from skerry.core import Unsupported

MAX_PAX = 1024 * 1024
"""Of one entry: its path, link target and extended attributes."""

BLOCK = 512
END = bytes(2 * BLOCK)
FILE, LINK, SYMLINK, DIRECTORY, FIFO, PAX = b"0", b"1", b"2", b"5", b"6", b"x"
TYPES = (FILE, LINK, SYMLINK, DIRECTORY, FIFO)
"""What an archive may hold."""

_USTAR = b"ustar\x0000"
_DEVICE = b"0000000\0"
_TAIL = _USTAR + bytes(64) + 2 * _DEVICE + bytes(167)
_FIXED = sum(_TAIL) + 8 * ord(" ")
"""What is the same in all checksums; the checksum itself counts as blanks."""
_MAX_OCTAL = 8**11 - 1
_PAX_NAME = b"PaxHeaders/next"
XATTR = b"SCHILY.xattr."
LITERAL = b"SKERRY.literal"
HIDES = b"SKERRY.hides"
SPARSE = b"GNU.sparse."
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


class Member(NamedTuple):
    """One member; a directory's path ends in a slash."""

    path: bytes
    type: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    """Of what is stored."""
    target: bytes = b""
    """Of a link."""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    literal: bool = False
    """The name begins with `.wh.` and means itself."""
    real_size: int | None = None
    """Of a sparse file; what is stored is then its map and its data."""
    hides: bool = False
    """A mark named `.wh..wh..opq` that hides the one name `.wh..opq`, not all of its directory."""


def padding(size: int) -> bytes:
    return _PADDING[size % BLOCK]


def encode(member: Member) -> bytes:
    """The header blocks. Raises Unsupported for attributes that are too large."""
    records = []
    name, target, size = member.path, member.target, member.size
    seconds, nanos = divmod(member.mtime_ns, 1_000_000_000)
    if member.real_size is not None:
        records += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", name)]
        records.append((b"GNU.sparse.realsize", b"%d" % member.real_size))
        directory, slash, last = name.rpartition(b"/")
        name = (directory + slash + b"GNUSparseFile.0/" + last)[:100]
    elif len(name) > 100:
        records.append((b"path", name))
        name = name[:100]
    if len(target) > 100:
        records.append((b"linkpath", target))
        target = target[:100]
    if size > _MAX_OCTAL:
        records.append((b"size", b"%d" % size))
        size = 0
    if nanos or not 0 <= seconds <= _MAX_OCTAL:
        records.append((b"mtime", _encode_time(member.mtime_ns)))
        seconds = min(max(seconds, 0), _MAX_OCTAL)
    for key, value in member.xattrs:
        # As GNU tar does: a PAX keyword has no equals sign.
        records.append((XATTR + key.replace(b"%", b"%25").replace(b"=", b"%3D"), value))
    if member.literal:
        records.append((LITERAL, b"1"))
    if member.hides:
        records.append((HIDES, b"1"))
    header = _block(name, member.mode, member.uid, member.gid, size, seconds, member.type, target)
    if not records:
        return header
    body = b"".join([_record(key, value) for key, value in records])
    if len(body) > MAX_PAX:
        raise Unsupported(
            f"{member.path[:200]!r} has {len(body)} bytes of names and attributes; an archive keeps {MAX_PAX}",
            option="xattrs",
        )
    return b"".join((_pax_block(len(body)), body, padding(len(body)), header))


@functools.lru_cache(maxsize=4096)
def _pax_block(size: int) -> bytes:
    return _block(_PAX_NAME, 0o644, 0, 0, size, 0, PAX, b"")


def _block(name: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, type: bytes, target: bytes) -> bytes:
    facts = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, uid, gid, size, mtime)
    total = sum(name) + sum(facts) + type[0] + sum(target) + _FIXED
    head = b"%b%b%06o\0 %b%b" % (name.ljust(100, b"\0"), facts, total, type, target.ljust(100, b"\0"))
    return head + _TAIL


def _record(key: bytes, value: bytes) -> bytes:
    """Its length counts itself."""
    size = len(key) + len(value) + 3
    length = size + len(str(size))
    if len(str(length)) > len(str(size)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _encode_time(ns: int) -> bytes:
    seconds, nanos = divmod(abs(ns), 1_000_000_000)
    return b"%s%d.%09d" % (b"-" if ns < 0 else b"", seconds, nanos)
