"""What a command writes: bounded in memory, decoded only at the edge."""

from __future__ import annotations

import codecs
from typing import Literal

from skerry._model import Model
from skerry.core import Cut

OutputStream = Literal["stdout", "stderr"]

OUTPUT_LIMIT = 8 * 1024 * 1024
"""Bytes of each stream that a result holds unless told otherwise."""
MAX_LINE = 1024 * 1024
"""Characters after which a line is handed out in pieces."""


class OutputChunk(Model, kw_only=False):
    """Bytes a command wrote, and where they are in its stream."""

    stream: OutputStream
    data: bytes
    offset: int


class ProcessOutput(Model):
    """What a process's ring buffers hold; `next` is what to pass as `since` for what comes after."""

    stdout: bytes
    """From `stdout_offset` on."""
    stderr: bytes
    """From `stderr_offset` on."""
    stdout_offset: int
    """The offset of the first byte of stdout here."""
    stderr_offset: int
    """The offset of the first byte of stderr here."""
    gap: int
    """How many bytes that were asked for are no longer there."""

    @property
    def next(self) -> tuple[int, int]:
        """The offsets of stdout and stderr after what is here."""
        return self.stdout_offset + len(self.stdout), self.stderr_offset + len(self.stderr)


class TerminalChunk(Model, kw_only=False):
    """Bytes a terminal showed, and where they are in all of its output."""

    data: bytes
    offset: int


class TerminalOutput(Model):
    """What a terminal's ring buffer holds; `next` is what to pass as `since` for what comes after."""

    data: bytes
    """From `offset` on."""
    offset: int
    """The offset of the first byte here."""
    gap: int
    """How many bytes that were asked for are no longer there."""

    @property
    def next(self) -> int:
        """The offset after what is here."""
        return self.offset + len(self.data)


class Collector:
    """Keeps the first and the last half of `limit` bytes; what lies between is counted and dropped."""

    __slots__ = ("_head", "_head_limit", "_limit", "_skipped", "_tail", "_tail_limit", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head_limit, self._tail_limit = limit // 2, limit - limit // 2
        self._skipped = 0
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """Bytes added."""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-self._tail_limit :] if self._tail_limit else b""
            # Cut at twice the limit, so that each byte is moved about once.
            if len(self._tail) > 2 * self._tail_limit:
                del self._tail[: -self._tail_limit]

    def skip(self, size: int) -> None:
        """Note bytes that are not there to be added: of what comes before them only the head stays."""
        if size:
            self._skipped += size
            self._head_limit = len(self._head)
            self._tail_limit = self._limit - self._head_limit
            self._tail.clear()

    def value(self) -> bytes:
        """The head, and right after it the tail."""
        start = max(0, len(self._tail) - self._tail_limit)
        with memoryview(self._tail) as tail:
            return b"".join((self._head, tail[start:]))  # copied once: it may be megabytes

    @property
    def dropped(self) -> int:
        """Bytes that were added and are not kept, or were never there."""
        return self._skipped + self.total - len(self._head) - min(len(self._tail), self._tail_limit)

    @property
    def cut(self) -> Cut | None:
        return Cut(len(self._head), self.dropped) if self.dropped else None


class TextDecoder:
    """UTF-8 in pieces of any size: never a broken character, undecodable bytes replaced."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, *, end: bool = False) -> str:
        return self._decoder.decode(data, end)


class LineDecoder:
    """Text cut at newlines, which are taken off; a line above MAX_LINE comes in pieces."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def feed(self, text: str) -> list[str]:
        first, *rest = text.split("\n")
        lines = []
        for part in (first, *rest[:-1]) if rest else ():
            lines.append("".join((*self._pieces, part)).removesuffix("\r"))
            self._pieces.clear()
        last = rest[-1] if rest else first
        self._size = len(last) if rest else self._size + len(last)
        if last:
            self._pieces.append(last)
        if self._size > MAX_LINE:
            lines += self.finish()
        return lines

    def finish(self) -> list[str]:
        """What is left without a newline."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        return ["".join(pieces)] if pieces else []
