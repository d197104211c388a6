"""The headers of tar streams, read: ustar, PAX and GNU forms, as any tar program writes them. None is trusted."""

from __future__ import annotations

import re
import struct

from skerry.trees.records import MAX_SIZE
from skerry.trees.tar import HIDES, LITERAL, MAX_PAX, PAX, SPARSE, XATTR, Member

_LONG_NAME, _LONG_TARGET, _PAX_GLOBAL = b"L", b"K", b"g"
_EXTENSIONS = (PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET)
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s82x155s12x")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_TIME = re.compile(rb"(-?)([0-9]{1,18})(?:\.([0-9]*))?")


class TarFault(ValueError):
    """A header that is damaged, or in a form that nothing here reads. Who reads the stream says what that means."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class HeaderParser:
    """The headers of one member after another. Holds at most MAX_PAX bytes of names and attributes."""

    def __init__(self) -> None:
        self._records: dict[bytes, bytes] = {}
        self._size = 0
        self._type = b""
        self._last = b""
        self._last_size = 0
        """The extended header before this one and what it said: in many streams most are the same to the byte."""

    @property
    def pending(self) -> bool:
        """Whether something was said about a member that has not come."""
        return bool(self._records)

    def block(self, block: bytes) -> Member | int:
        """A member, or how many bytes after this block (and before its padding) are for `extend`. Raises TarFault."""
        if block == self._last:
            return self._last_size
        member = _parse(block)
        if member.type in _EXTENSIONS:
            if not 0 < member.size <= MAX_PAX:
                raise TarFault(f"an extended header of {member.size} bytes")
            self._type, self._last, self._last_size = member.type, block, member.size
            return member.size
        records, self._records, self._size = self._records, {}, 0
        return _extended(member, records) if records else member

    def extend(self, data: bytes) -> None:
        """Raises TarFault."""
        self._size += len(data)
        if self._size > MAX_PAX:
            raise TarFault(f"a member with more than {MAX_PAX} bytes of names and attributes")
        if self._type == PAX:
            self._records |= _parse_records(data)
        elif self._type == _PAX_GLOBAL:
            if set(_parse_records(data)) - {b"comment"}:
                raise TarFault("a global header that changes all members after it")
        else:
            self._records[b"path" if self._type == _LONG_NAME else b"linkpath"] = data.rstrip(b"\0")


def parse_number(text: bytes) -> int:
    """Raises TarFault."""
    number = int(text) if _DECIMAL.fullmatch(text) else -1
    if not 0 <= number <= MAX_SIZE:
        raise TarFault("something else where a number belongs")
    return number


def _parse(block: bytes) -> Member:
    name, mode, uid, gid, size, mtime, checksum, type, target, magic, prefix = _FIELDS.unpack(block)
    # Most of a header is zeros, which need not be added up.
    if _field(checksum) != sum(block.translate(None, b"\0")) - sum(checksum) + 8 * ord(" "):
        raise TarFault("a header has a wrong checksum")
    path = name.partition(b"\0")[0]
    if prefix[0] and magic == b"ustar\0":
        path = prefix.partition(b"\0")[0] + b"/" + path
    return Member(
        path,
        type,
        _field(mode),
        _field(uid),
        _field(gid),
        _field(mtime) * 1_000_000_000,
        _field(size),
        target.partition(b"\0")[0],
    )


def _field(field: bytes) -> int:
    """Octal digits, or as GNU writes large numbers: binary after a byte 0x80."""
    digits = field.strip(b"\0 ")
    if not digits:
        return 0
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            raise TarFault("a header has something else where a number belongs") from None
    if field[0] == 0xFF:
        return 0  # a time before 1970; nothing else is negative
    number = int.from_bytes(field[1:], "big")
    if field[0] != 0x80 or number > MAX_SIZE:
        raise TarFault("a header has something else where a number belongs")
    return number


def _extended(member: Member, records: dict[bytes, bytes]) -> Member:
    """What no reader here asks for, such as the names of owners, is passed over."""
    path, type, mode, uid, gid, mtime_ns, size, target, *_ = member
    attributes = []
    sparse: dict[bytes, bytes] = {}
    for key, value in records.items():
        if key == b"mtime":
            mtime_ns = _parse_time(value)
        elif key == b"path":
            path = value
        elif key == b"linkpath":
            target = value
        elif key == b"size":
            size = parse_number(value)
        elif key.startswith(XATTR):
            attributes.append((key[len(XATTR) :].replace(b"%3D", b"=").replace(b"%25", b"%"), value))
        elif key.startswith(SPARSE):
            sparse[key[len(SPARSE) :]] = value
    real_size = None
    if sparse:
        if (sparse.get(b"major"), sparse.get(b"minor")) != (b"1", b"0") or not {b"name", b"realsize"} <= set(sparse):
            raise TarFault("a sparse file that is not in GNU tar's form 1.0", hint="pack it without --sparse")
        path, real_size = sparse[b"name"], parse_number(sparse[b"realsize"])
    literal, hides = records.get(LITERAL) == b"1", records.get(HIDES) == b"1"
    return Member(path, type, mode, uid, gid, mtime_ns, size, target, tuple(attributes), literal, real_size, hides)


def _parse_records(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        end = at + (parse_number(data[at:space]) if space > at else 0)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space + 3 or data[end - 1 : end] != b"\n" or not equals:
            raise TarFault("an extended header is damaged")
        found[key] = value
        at = end
    return found


def _parse_time(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if not match:
        raise TarFault("something else where a time belongs")
    ns = int(match[2]) * 1_000_000_000 + int((match[3] or b"")[:9].ljust(9, b"0"))
    return -ns if match[1] else ns
