"""Text of output that is not complete: with a mark where bytes were left out."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

MAX_PARTIAL = 4096
"""Bytes of a torn line that the text leaves out too; of a longer line the pieces stay."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where bytes of a stream were left out, and how many."""

    at: int
    """How many of the bytes that were kept come before it."""
    size: int


def text_of(data: bytes, cut: Cut | None) -> str:
    """The bytes as text, with a mark such as `[… 588,695 bytes left out …]` at the cut; what is not UTF-8 is replaced.

    The mark is a line of its own: the torn lines around it are left out and counted in it, so that no line of the
    text is half of one. In a line longer than MAX_PARTIAL it stands inside the line. Nothing kept is no text.
    """
    if cut is None or not data:
        return data.decode("utf-8", "replace")
    head, before = _head(data[: cut.at])
    tail, after, line_break = _tail(data[cut.at :])
    size = before + cut.size + after
    mark = f"[… {size:,} byte{'' if size == 1 else 's'} left out …]"
    return head + mark + line_break + tail


def _head(data: bytes) -> tuple[str, int]:
    """What is shown before the mark, and how many bytes are not."""
    line_end = data.rfind(b"\n", max(0, len(data) - MAX_PARTIAL)) + 1
    if line_end:
        return data[:line_end].decode("utf-8", "replace"), len(data) - line_end
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(decoder.getstate()[0])


def _tail(data: bytes) -> tuple[str, int, str]:
    """What is shown after the mark, how many bytes are not, and what goes between."""
    line_start = data.find(b"\n", 0, MAX_PARTIAL) + 1
    if 0 < line_start < len(data) or not data:
        return data[line_start:].decode("utf-8", "replace"), line_start, "\n"
    torn = 0
    while torn < min(3, len(data)) and 0x80 <= data[torn] < 0xC0:
        torn += 1
    return data[torn:].decode("utf-8", "replace"), torn, ""
