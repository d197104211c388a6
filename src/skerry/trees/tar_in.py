"""A tar stream from anywhere as a tree stream, in constant memory. What could lead outside the tree is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from skerry.core import InvalidArgument
from skerry.trees.pack import Tally
from skerry.trees.records import (
    MAX_CONTENT,
    MAX_DEPTH,
    MAX_SIZE,
    MAX_TARGET,
    TreeError,
    check_path,
    content_head,
    encode_end,
    encode_entry,
    encode_file_end,
)

BLOCK = 512
MAX_EXTRA = 1 << 20
"""Bytes of names and attributes of one member."""
BATCH = 256 << 10
FOLDER_MODE = 0o755
_PLAIN, _LINK, _SYMLINK, _FOLDER = (b"0", b"\0", b"7"), b"1", b"2", b"5"
_LONG_NAME, _LONG_TARGET, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
_XATTR = b"SCHILY.xattr.user."


class TarError(InvalidArgument):
    """A tar stream that is damaged, cut short, or holds what may not be in it. Nothing of it is kept."""


@dataclass
class _Header:
    """A member as its header, and what came before it, describe it."""

    path: bytes
    type: bytes
    mode: int
    mtime_ns: int
    size: int
    target: bytes
    xattrs: list[tuple[bytes, bytes]] = field(default_factory=list)


class TarDecoder:
    """Feed it a tar stream in pieces of any size; what it gives is a tree stream. `finish` says that all has come.

    A directory's members must come together, as every tar program writes them; directories that are missing are made.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._buffer = bytearray()
        self._extra: dict[bytes, bytes] = {}
        self._extra_type = b""
        self._extra_size = 0
        self._body = self._at = self._skip = 0
        """Bytes of the member that are still to come, that have come, and of the padding after it."""
        self._collecting: bytearray | None = None
        self._levels: list[bytes] = []
        """The directories that are open now, by their paths."""
        self._zero_blocks = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises TarError."""
        if self._zero_blocks >= 2:
            return  # padding after the end
        self._buffer += data
        view = memoryview(bytes(self._buffer))
        self._buffer.clear()
        at = 0
        while at < len(view) and self._zero_blocks < 2:
            if self._body:
                part = view[at : at + min(self._body, MAX_CONTENT)]
                at += len(part)
                yield from self._content(part)
            elif self._skip:
                step = min(self._skip, len(view) - at)
                at, self._skip = at + step, self._skip - step
            elif len(view) - at >= BLOCK:
                block = bytes(view[at : at + BLOCK])
                at += BLOCK
                yield from self._block(block)
            else:
                self._buffer += view[at:]
                return

    def finish(self) -> bytes:
        """The end of the tree stream. Raises TarError for a stream that was cut short."""
        if self._zero_blocks < 1 or self._body or self._skip or self._extra or self._buffer.strip(b"\0"):
            raise TarError("the tar stream was cut short", hint="nothing of it was kept; send it again")
        root = b"" if self._levels else b"".join(self._open_root(None))
        return root + encode_end(self.tally.entries, self.tally.bytes)

    def _block(self, block: bytes) -> Iterator[bytes]:
        if not block.strip(b"\0"):
            self._zero_blocks += 1
            return
        self._zero_blocks = 0
        header = _parse(block)
        if header.type in (_LONG_NAME, _LONG_TARGET, _PAX, _PAX_GLOBAL):
            if not 0 < header.size <= MAX_EXTRA:
                raise TarError(f"a tar header with {header.size} bytes of names")
            self._collecting, self._extra_type = bytearray(), header.type
            self._expect(header.size)
            return
        extra, self._extra, self._extra_size = self._extra, {}, 0
        yield from self._member(_extended(header, extra))

    def _expect(self, size: int) -> None:
        self._body, self._at, self._skip = size, 0, -size % BLOCK

    def _content(self, part: memoryview) -> Iterator[bytes]:
        self._body -= len(part)
        if self._collecting is not None:
            self._collecting += part
            if not self._body:
                self._collected(bytes(self._collecting))
                self._collecting = None
            return
        yield content_head(self._at, len(part)) + bytes(part)
        self._at += len(part)
        self.tally.bytes += len(part)
        if not self._body:
            yield from self._end_file()

    def _end_file(self) -> Iterator[bytes]:
        yield encode_file_end(self._at)

    def _collected(self, data: bytes) -> None:
        self._extra_size += len(data)
        if self._extra_size > MAX_EXTRA:
            raise TarError(f"a member of the tar stream with more than {MAX_EXTRA} bytes of names")
        if self._extra_type == _PAX:
            self._extra |= _records(data)
        elif self._extra_type == _PAX_GLOBAL:
            if set(_records(data)) - {b"comment"}:
                raise TarError("a tar stream with global headers that change its members")
        else:
            self._extra[b"path" if self._extra_type == _LONG_NAME else b"linkpath"] = data.rstrip(b"\0")

    def _member(self, header: _Header) -> Iterator[bytes]:
        path = _clean(header.path)
        is_folder = header.type == _FOLDER or (header.type in _PLAIN and header.path.endswith(b"/"))
        if is_folder and not path:
            if not self._levels:
                yield from self._open_root(header)
            return
        if not path:
            raise TarError("a member of the tar stream has no name")
        if is_folder and path in self._levels:
            return  # made when something in it came first
        yield from self._enter(path.rpartition(b"/")[0])
        if is_folder:
            yield from self._open(path, header)
        elif header.type in _PLAIN:
            yield from self._file(path, header)
        elif header.type in (_SYMLINK, _LINK):
            yield from self._link(path, header)
        else:
            raise TarError(f"{_shown(path)} is a device, a pipe or something else that may not be in it")

    def _enter(self, directory: bytes) -> Iterator[bytes]:
        """Leave what `directory` is not in, and make what is missing above it."""
        if not self._levels:
            yield from self._open_root(None)
        while self._levels[-1] and directory != self._levels[-1] and not directory.startswith(self._levels[-1] + b"/"):
            self._levels.pop()
        if directory == self._levels[-1]:
            return
        top = self._levels[-1]
        rest = directory[len(top) + 1 :] if top else directory
        for part in rest.split(b"/"):
            top = top + b"/" + part if top else part
            yield from self._open(top, None)

    def _open_root(self, header: _Header | None) -> Iterator[bytes]:
        yield from self._open(b"", header)

    def _open(self, path: bytes, header: _Header | None) -> Iterator[bytes]:
        if len(self._levels) == MAX_DEPTH:
            raise TarError(f"a tar stream with more than {MAX_DEPTH} levels")
        self._levels.append(path)
        self.tally.directories += 1
        mode, mtime = (FOLDER_MODE, 0) if header is None else (header.mode, header.mtime_ns)
        yield self._entry(path, b"dir", mode, mtime, xattrs=() if header is None else tuple(header.xattrs))

    def _file(self, path: bytes, header: _Header) -> Iterator[bytes]:
        self.tally.files += 1
        yield self._entry(path, b"file", header.mode, header.mtime_ns, header.size, xattrs=tuple(header.xattrs))
        self._expect(header.size)
        if not header.size:
            yield from self._end_file()

    def _link(self, path: bytes, header: _Header) -> Iterator[bytes]:
        if header.size:
            raise TarError(f"{_shown(path)} is a link with content")
        if header.type == _SYMLINK:
            if not 0 < len(header.target) <= MAX_TARGET or b"\0" in header.target:
                raise TarError(f"{_shown(path)} is a link without a target")
            self.tally.links += 1
            yield self._entry(path, b"link", 0o777, header.mtime_ns, target=header.target)
            return
        if not (source := _clean(header.target)):
            raise TarError(f"{_shown(path)} is another name of nothing")
        self.tally.files += 1
        yield self._entry(path, b"file", header.mode, header.mtime_ns, same_as=source)

    def _entry(
        self,
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
        self.tally.entries += 1
        return encode_entry(path, type, mode & 0o7777, mtime_ns, size, target=target, same_as=same_as, xattrs=xattrs)


async def tree_stream(source: AsyncIterator[bytes], decoder: TarDecoder) -> AsyncIterator[bytes]:
    """Raises TarError, and what `source` raises."""
    parts: list[bytes] = []
    size = 0
    async for data in source:
        for part in decoder.feed(data):
            parts.append(part)
            size += len(part)
            if size >= BATCH:
                yield b"".join(parts)
                parts, size = [], 0
    parts.append(decoder.finish())
    yield b"".join(parts)


def _parse(block: bytes) -> _Header:
    checksum = _number(block[148:156])
    if checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise TarError("this is not a tar stream, or it is damaged", hint="it must not be compressed")
    path, target = block[:100].partition(b"\0")[0], block[157:257].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].partition(b"\0")[0]):
        path = prefix + b"/" + path
    size = _number(block[124:136])
    mtime = _number(block[136:148]) * 1_000_000_000
    return _Header(path, block[156:157], _number(block[100:108]), min(mtime, MAX_SIZE), size, target)


def _number(field: bytes) -> int:
    """Octal digits, or as GNU writes large ones: binary after a byte 0x80."""
    if field[:1] == b"\x80":
        number = int.from_bytes(field[1:], "big")
    elif field[:1] == b"\xff":
        return 0  # a time before 1970; nothing else is negative
    else:
        digits = field.strip(b"\0 ")
        if digits.strip(b"01234567"):
            raise TarError("this is not a tar stream, or it is damaged", hint="it must not be compressed")
        number = int(digits or b"0", 8)
    if number > MAX_SIZE:
        raise TarError("a tar stream with an impossible number")
    return number


def _extended(header: _Header, extra: dict[bytes, bytes]) -> _Header:
    for key, value in extra.items():
        if key == b"path":
            header.path = value
        elif key == b"linkpath":
            header.target = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise TarError("a tar stream with an impossible number")
            header.size = int(value)
        elif key == b"mtime":
            header.mtime_ns = _time(value)
        elif key.startswith(b"GNU.sparse."):
            raise TarError("a tar stream with sparse files", hint="pack it without --sparse")
        elif key.startswith(_XATTR):
            name = key.removeprefix(b"SCHILY.xattr.").replace(b"%3D", b"=").replace(b"%25", b"%")
            header.xattrs.append((name, value))
    if sum(len(name) + len(value) for name, value in header.xattrs) > 100_000:
        raise TarError(f"{_shown(header.path)} has too many attributes")
    return header


def _time(value: bytes) -> int:
    whole, _, fraction = value.partition(b".")
    sign = -1 if whole.startswith(b"-") else 1
    whole = whole.removeprefix(b"-")
    if not whole.isdigit() or len(whole) > 18 or (fraction and not fraction.isdigit()):
        raise TarError("a tar stream with an impossible time")
    ns = int(whole) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0") or b"0")
    return sign * min(ns, MAX_SIZE)


def _records(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        length = int(data[at:space]) if space > at and data[at:space].isdigit() else 0
        key, equals, value = data[space + 1 : at + length - 1].partition(b"=")
        if at + length > len(data) or length < 5 or not equals or data[at + length - 1 : at + length] != b"\n":
            raise TarError("an extended header of the tar stream is damaged")
        found[key] = value
        at += length
    return found


def _clean(path: bytes) -> bytes:
    """Relative to the tree, without `.` and slashes that mean nothing. Raises TarError for what leads outside."""
    if path.startswith(b"/"):
        raise TarError(f"{_shown(path)} is an absolute name", hint="pack it with names relative to a directory")
    clean = b"/".join(part for part in path.split(b"/") if part not in (b"", b"."))
    try:
        check_path(clean)
    except TreeError as error:
        raise TarError(f"{_shown(path)} may not be in a tar stream: {error}") from None
    return clean


def _shown(path: bytes) -> str:
    return repr(path[:200].decode("utf-8", "replace"))
