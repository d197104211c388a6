"""Members of a tar stream as bytes: ustar headers with PAX records, written in one form and read in no other."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from skerry.core import Corrupted, Unsupported

MAX_PAX = 1024 * 1024
"""Of one entry: its path, link target and extended attributes."""

BLOCK = 512
END = bytes(2 * BLOCK)
FILE, LINK, SYMLINK, DIRECTORY, FIFO, PAX = b"0", b"1", b"2", b"5", b"6", b"x"
_TYPES = (FILE, LINK, SYMLINK, DIRECTORY, FIFO)

_USTAR = b"ustar\x0000"
_DEVICE = b"0000000\0"
_TAIL = _USTAR + bytes(64) + 2 * _DEVICE + bytes(167)
_FIXED = sum(_TAIL) + 8 * ord(" ")
"""What is the same in all checksums; the checksum itself counts as blanks."""
_MAX_OCTAL = 8**11 - 1
_PAX_NAME = b"PaxHeaders/next"
_SECONDS = re.compile(rb"(-?)([0-9]{1,18})(?:\.([0-9]{9}))?")
_FACTS = re.compile(rb"([0-7]{7})\0([0-7]{7})\0([0-7]{7})\0([0-7]{11})\0([0-7]{11})\0([0-7]{6})\0 (.)", re.DOTALL)
_SIZE = re.compile(rb"[0-7]{11}\0")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,18}")
_TOO_LARGE = 2**63
_XATTR = b"SCHILY.xattr."
_LITERAL = b"SKERRY.literal"
_HIDES = b"SKERRY.hides"
_SPARSE = b"GNU.sparse."
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
        records.append((_XATTR + key.replace(b"%", b"%25").replace(b"=", b"%3D"), value))
    if member.literal:
        records.append((_LITERAL, b"1"))
    if member.hides:
        records.append((_HIDES, b"1"))
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


def is_pax(block: bytes) -> bool:
    return block[156:157] == PAX


def pax_size(block: bytes) -> int:
    """Of the records after this header. Raises Corrupted."""
    size = int(block[124:135], 8) if _SIZE.match(block, 124) else 0
    if not 0 < size <= MAX_PAX or block != _pax_block(size):
        raise Corrupted(f"an extended header of {size} bytes in the archive")
    return size


def decode(block: bytes, records: bytes) -> Member:
    """The member that a header and the PAX records before it describe. Raises Corrupted."""
    match = _FACTS.match(block, 100)
    if match is None or len(block) != BLOCK or block[257:265] != _USTAR:
        raise Corrupted("a header in the archive is damaged")
    mode, uid, gid, size, mtime, checksum, type = match.groups()
    if int(checksum, 8) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise Corrupted("a header in the archive is damaged")
    if type not in _TYPES:
        raise Corrupted(f"the archive holds a device or something else that no sandbox has (type {type!r})")
    if block[257:] != _TAIL:
        raise Corrupted("a header in the archive has fields that Skerry does not write")
    name, target = block[:100].rstrip(b"\0"), block[157:257].rstrip(b"\0")
    if b"\0" in name or b"\0" in target:
        raise Corrupted("a header in the archive is damaged")
    member = Member(
        name, type, int(mode, 8), int(uid, 8), int(gid, 8), int(mtime, 8) * 1_000_000_000, int(size, 8), target
    )
    return _extend(member, records) if records else member


def _extend(member: Member, records: bytes) -> Member:
    found = _parse_records(records)
    changes: dict[str, object] = {}
    attributes = []
    sparse: dict[bytes, bytes] = {}
    for key, value in found.items():
        if key == b"path":
            changes["path"] = value
        elif key == b"linkpath":
            changes["target"] = value
        elif key == b"size":
            changes["size"] = parse_number(value)
        elif key == b"mtime":
            changes["mtime_ns"] = _decode_time(value)
        elif key == _LITERAL and value == b"1":
            changes["literal"] = True
        elif key == _HIDES and value == b"1":
            changes["hides"] = True
        elif key.startswith(_XATTR):
            attributes.append((key[len(_XATTR) :].replace(b"%3D", b"=").replace(b"%25", b"%"), value))
        elif key.startswith(_SPARSE):
            sparse[key[len(_SPARSE) :]] = value
        else:
            raise Corrupted(f"the archive uses an unknown extension {key[:60]!r}")
    if sparse:
        if set(sparse) != {b"major", b"minor", b"name", b"realsize"} or (sparse[b"major"], sparse[b"minor"]) != (
            b"1",
            b"0",
        ):
            raise Corrupted("the archive has a sparse file in a form that Skerry does not write")
        changes["path"] = sparse[b"name"]
        changes["real_size"] = parse_number(sparse[b"realsize"])
    return member._replace(xattrs=tuple(attributes), **changes)  # type: ignore[arg-type]


def _parse_records(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        length = parse_number(data[at:space]) if space > at else 0
        end = at + length
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space + 3 or data[end - 1 : end] != b"\n" or not equals or key in found:
            raise Corrupted("an extended header in the archive is damaged")
        found[key] = value
        at = end
    return found


def parse_number(text: bytes) -> int:
    number = int(text) if _NUMBER.fullmatch(text) else _TOO_LARGE
    if number >= _TOO_LARGE:
        raise Corrupted("the archive has something else where a number belongs")
    return number


def _decode_time(text: bytes) -> int:
    match = _SECONDS.fullmatch(text)
    if not match:
        raise Corrupted("the archive has something else where a time belongs")
    ns = int(match[2]) * 1_000_000_000 + int(match[3] or b"0")
    return -ns if match[1] else ns
