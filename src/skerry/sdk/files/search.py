"""Finds and replaces text in a sandbox's files; the client matches, so it works the same in every image."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from skerry._model import Model
from skerry.core import Conflict, InvalidArgument
from skerry.sdk.commands.request import SandboxPath, check_user, decode, encode_path
from skerry.sdk.connection.link import FILE_GUARD, Link
from skerry.sdk.connection.stream import Data, Reply
from skerry.sdk.files import content as transfer
from skerry.sdk.files import glob
from skerry.trees import Content, Decoder, End, Entry, FileEnd, Record, SkippedRecord, TreeError
from skerry.wire import FileInfoMessage, Pack, Read, TreeInfo, Write

WINDOW = 1 << 20
MAX_LINE = 1000
MAX_EDIT = 64 << 20


class SearchMatch(Model):
    """A line with a match."""

    path: str
    """The file."""
    line: int
    """From 1."""
    column: int
    """Of the first match in the line, in characters, from 1."""
    text: str
    """The line, cut after 1,000 characters; bytes that are not UTF-8 are replaced."""


class SearchResult(Model):
    """What was found, in the order of the tree."""

    matches: tuple[SearchMatch, ...]
    """The lines."""
    truncated: bool
    """There are more matches than were asked for."""
    skipped: int
    """Files that were not searched: binary, too large, or not regular files."""


class Replacement(Model):
    """What was replaced."""

    files: dict[str, int]
    """How many times in which file; those without a match are not in it."""
    skipped: tuple[str, ...]
    """Files that were left alone: not UTF-8, or above 64 MiB."""

    @property
    def count(self) -> int:
        """How many times in all files."""
        return sum(self.files.values())


class Query(Model):
    """A checked search."""

    pattern: re.Pattern[str]
    names: re.Pattern[str] | None
    exclude: tuple[bytes, ...]
    max_matches: int
    max_file_size: int


def compile_pattern(pattern: object, *, regex: bool, ignore_case: bool = False) -> re.Pattern[str]:
    """Raises InvalidArgument for an invalid regular expression."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidArgument(f"the pattern must be text and not empty, not {pattern!r}")
    try:
        return re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        hint = "pass regex=False to look for the text itself"
        raise InvalidArgument(f"{pattern!r} is not a regular expression: {error}", hint=hint) from None


async def search(link: Link, path: SandboxPath, query: Query, user: str | None) -> SearchResult:
    """One stream through the tree; never more of it in memory than one file."""
    message = Pack(
        path=encode_path(path),
        user=check_user(user),
        exclude=query.exclude,
        max_size=query.max_file_size,
        window=WINDOW,
    )
    scan = Scan(str(path), query)
    async with link.open(message) as stream:
        item = await stream.next(FILE_GUARD)
        if not isinstance(item, Reply) or item.final:
            raise stream.corrupt("a PACK that does not begin with the tree's info")
        try:
            while isinstance(item := await stream.next(FILE_GUARD), Data):
                if scan.feed(bytes(item.data)):
                    return scan.result(truncated=True)
                stream.took(0, len(item.data))
                await asyncio.sleep(0)  # matching is work: others get their turn
            scan.finish()
        except TreeError as error:
            raise stream.corrupt(str(error)) from error
        stream.decode(TreeInfo, item.payload)
    return scan.result(truncated=False)


class Scan:
    """Takes a tree stream and keeps the matches. Raises TreeError for one that breaks the rules."""

    def __init__(self, root: str, query: Query) -> None:
        self._root, self._query = root, query
        self._decoder = Decoder()
        self._entries = 0
        self._end: End | None = None
        self._matches: list[SearchMatch] = []
        self._skipped = 0
        self._path = ""
        self._content: bytearray | None = None
        """Of the file at hand; None: not to be looked at."""

    def feed(self, data: bytes) -> bool:
        """True: there is a match too many."""
        return any(self._take(record) for record in self._decoder.feed(data))

    def finish(self) -> None:
        """Raises TreeError unless the tree was complete."""
        if self._end is None or not self._decoder.complete or self._end.entries != self._entries:
            raise TreeError("a tree that is not complete")

    def _take(self, record: Record) -> bool:
        if self._end is not None or (isinstance(record, Content | FileEnd) and not self._entries):
            raise TreeError("a record where none may be")
        if isinstance(record, Entry):
            self._entries += 1
            self._begin(record)
        elif isinstance(record, Content):
            self._add(record)
        elif isinstance(record, FileEnd):
            return self._ended(record.size)
        elif isinstance(record, SkippedRecord):
            self._skipped += record.reason != "excluded"
        else:
            self._end = record
        return False

    def _begin(self, entry: Entry) -> None:
        relative = decode(entry.path)
        self._path = _join(self._root, relative)
        name = relative or self._root.rpartition("/")[2]
        wanted = self._query.names is None or self._query.names.fullmatch(name) is not None
        plain = entry.type == b"file" and entry.same_as is None
        self._content = bytearray() if plain and wanted else None

    def _add(self, content: Content) -> None:
        if self._content is None:
            return
        data = bytes(content.data)
        if content.offset != len(self._content) or b"\0" in data:
            self._content = None
            self._skipped += 1
            return
        self._content += data
        if len(self._content) > self._query.max_file_size:
            raise TreeError("a file larger than was asked for")

    def _ended(self, size: int) -> bool:
        content, self._content = self._content, None
        if content is None:
            return False
        if len(content) != size:
            self._skipped += 1  # it ends in a hole, which is zeros
            return False
        return self._match(content)

    def _match(self, content: bytearray) -> bool:
        for number, line in enumerate(_lines(content), start=1):
            found = self._query.pattern.search(line)
            if found is None:
                continue
            if len(self._matches) == self._query.max_matches:
                return True
            column, text = found.start() + 1, line[:MAX_LINE]
            self._matches.append(SearchMatch(path=self._path, line=number, column=column, text=text))
        return False

    def result(self, *, truncated: bool) -> SearchResult:
        return SearchResult(matches=tuple(self._matches), truncated=truncated, skipped=self._skipped)


def _lines(content: bytearray) -> Iterator[str]:
    """One at a time: a list of all would be many times the size of the file."""
    text, start = content.decode("utf-8", "replace"), 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].removesuffix("\r")
        start = end + 1


def _join(root: str, relative: str) -> str:
    if not relative:
        return root
    return relative if root in (".", "./") else f"{root.rstrip('/')}/{relative}"


class Edit(Model):
    """A checked replacement."""

    pattern: re.Pattern[str]
    new: str
    """For `re.sub` if `regex`, else as it is."""
    regex: bool
    count: int
    """In each file; 0: all."""

    def apply(self, text: str) -> tuple[str, int]:
        new = self.new
        try:
            return self.pattern.subn(new if self.regex else lambda _: new, text, count=self.count)
        except (re.error, IndexError) as error:
            raise InvalidArgument(f"{new!r} cannot replace a match: {error}") from None


def check_new(new: object) -> str:
    if not isinstance(new, str):
        raise InvalidArgument(f"the new text must be text, not {type(new).__name__}")
    return new


async def replace_in(link: Link, path: SandboxPath, edit: Edit, user: str | None) -> int | None:
    """Edit one file. Returns how many times, or None if it is not text. Raises Conflict if somebody changed it."""
    reading = Read(path=encode_path(path), user=check_user(user), length=MAX_EDIT + 1, window=WINDOW)
    async with link.open(reading) as stream:
        item = await stream.next(FILE_GUARD)
        if not isinstance(item, Reply) or item.final:
            raise stream.corrupt("a READ that does not begin with the file's info")
        etag = stream.decode(FileInfoMessage, item.payload).etag
        content = b"".join([part async for part in transfer.body(stream)])
    if len(content) > MAX_EDIT or b"\0" in content:
        return None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    changed, count = edit.apply(text)
    if count and changed != text:
        message = Write(path=encode_path(path), user=check_user(user), if_match=etag)
        try:
            async with link.open(message) as stream:
                await transfer.store(stream, changed.encode("utf-8", "surrogateescape"))
        except Conflict as error:
            raise Conflict(f"somebody else changed {path} during the replacement", hint="replace again") from error
    return count


def has_pattern(path: SandboxPath) -> bool:
    return isinstance(path, str) and glob.has_magic(path)
