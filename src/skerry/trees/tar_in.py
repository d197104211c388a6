"""A tar stream from anywhere as a tree stream, in constant memory. What could lead outside the tree is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from skerry.core import InvalidArgument
from skerry.trees.pack import XATTR_BYTES, Tally
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
from skerry.trees.tar import BLOCK, DIRECTORY, FILE, LINK, SYMLINK, Member
from skerry.trees.tar_header import HeaderParser, TarFault

BATCH = 256 << 10
_PLAIN = (FILE, b"\0", b"7")
_MISSING = Member(b"", DIRECTORY, 0o755)
"""A directory that no member describes, though one lies in it."""


class TarError(InvalidArgument):
    """A tar stream that is damaged, cut short, or holds what may not be in it. Nothing of it is kept."""


class TarDecoder:
    """Feed it a tar stream in pieces of any size; what it gives is a tree stream. `finish` says that all has come.

    A directory's members must come together, as every tar program writes them; directories that are missing are made.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._buffer = bytearray()
        self._headers = HeaderParser()
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
                if (member := self._block(block)) is not None:
                    yield from self._member(member)
            else:
                self._buffer += view[at:]
                return

    def finish(self) -> bytes:
        """The end of the tree stream. Raises TarError for a stream that was cut short."""
        if self._zero_blocks < 1 or self._body or self._skip or self._headers.pending or self._buffer.strip(b"\0"):
            raise TarError("the tar stream was cut short", hint="nothing of it was kept; send it again")
        root = b"" if self._levels else b"".join(self._open(b""))
        return root + encode_end(self.tally.entries, self.tally.bytes)

    def _block(self, block: bytes) -> Member | None:
        if not any(block):
            self._zero_blocks += 1
            return None
        self._zero_blocks = 0
        try:
            found = self._headers.block(block)
        except TarFault as fault:
            raise _damaged(fault) from None
        if isinstance(found, Member):
            return found
        self._collecting = bytearray()
        self._expect(found)
        return None

    def _expect(self, size: int) -> None:
        self._body, self._at, self._skip = size, 0, -size % BLOCK

    def _content(self, part: memoryview) -> Iterator[bytes]:
        self._body -= len(part)
        if self._collecting is not None:
            self._collecting += part
            if not self._body:
                try:
                    self._headers.extend(bytes(self._collecting))
                except TarFault as fault:
                    raise _damaged(fault) from None
                self._collecting = None
            return
        yield content_head(self._at, len(part)) + bytes(part)
        self._at += len(part)
        self.tally.bytes += len(part)
        if not self._body:
            yield encode_file_end(self._at)

    def _member(self, member: Member) -> Iterator[bytes]:
        path = _clean(member.path)
        is_folder = member.type == DIRECTORY or (member.type in _PLAIN and member.path.endswith(b"/"))
        if is_folder and not path:
            if not self._levels:
                yield from self._open(b"", member)
            return
        if not path:
            raise TarError("a member of the tar stream has no name")
        if is_folder and path in self._levels:
            return  # made when something in it came first
        if member.real_size is not None:
            raise TarError(f"{_shown(path)} is a sparse file", hint="pack it without --sparse")
        yield from self._enter(path.rpartition(b"/")[0])
        if is_folder:
            yield from self._open(path, member)
        elif member.type in _PLAIN:
            yield from self._file(path, member)
        elif member.type in (SYMLINK, LINK):
            yield from self._link(path, member)
        else:
            raise TarError(f"{_shown(path)} is a device, a pipe or something else that may not be in it")

    def _enter(self, directory: bytes) -> Iterator[bytes]:
        """Leave what `directory` is not in, and make what is missing above it."""
        if not self._levels:
            yield from self._open(b"")
        while self._levels[-1] and directory != self._levels[-1] and not directory.startswith(self._levels[-1] + b"/"):
            self._levels.pop()
        if directory == self._levels[-1]:
            return
        top = self._levels[-1]
        rest = directory[len(top) + 1 :] if top else directory
        for part in rest.split(b"/"):
            top = top + b"/" + part if top else part
            yield from self._open(top)

    def _open(self, path: bytes, member: Member = _MISSING) -> Iterator[bytes]:
        if len(self._levels) == MAX_DEPTH:
            raise TarError(f"a tar stream with more than {MAX_DEPTH} levels")
        self._levels.append(path)
        self.tally.directories += 1
        yield self._entry(path, b"dir", member)

    def _file(self, path: bytes, member: Member) -> Iterator[bytes]:
        self.tally.files += 1
        yield self._entry(path, b"file", member, size=member.size)
        self._expect(member.size)
        if not member.size:
            yield encode_file_end(0)

    def _link(self, path: bytes, member: Member) -> Iterator[bytes]:
        if member.size:
            raise TarError(f"{_shown(path)} is a link with content")
        if member.type == SYMLINK:
            if not 0 < len(member.target) <= MAX_TARGET or b"\0" in member.target:
                raise TarError(f"{_shown(path)} is a link without a target")
            self.tally.links += 1
            yield self._entry(path, b"link", member)
            return
        if not (source := _clean(member.target)):
            raise TarError(f"{_shown(path)} is another name of nothing")
        self.tally.files += 1
        yield self._entry(path, b"file", member, same_as=source)

    def _entry(self, path: bytes, type: bytes, member: Member, *, size: int = 0, same_as: bytes | None = None) -> bytes:
        self.tally.entries += 1
        is_link = type == b"link"
        return encode_entry(
            path,
            type,
            0o777 if is_link else member.mode & 0o7777,
            max(-MAX_SIZE, min(member.mtime_ns, MAX_SIZE)),
            size,
            target=member.target if is_link else b"",
            same_as=same_as,
            xattrs=() if is_link or same_as is not None else _kept(member),
        )


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


def _damaged(fault: TarFault) -> TarError:
    return TarError(
        f"this is not a tar stream, or it is damaged: {fault}", hint=fault.hint or "it must not be compressed"
    )


def _kept(member: Member) -> tuple[tuple[bytes, bytes], ...]:
    """The attributes that any user may set. Raises TarError for more than an entry holds."""
    kept = tuple(pair for pair in member.xattrs if pair[0].startswith(b"user."))
    if sum(len(name) + len(value) for name, value in kept) > XATTR_BYTES:
        raise TarError(f"{_shown(member.path)} has too many attributes")
    return kept


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
