"""The text of incomplete output, with a mark where bytes were left out."""

from __future__ import annotations

import codecs

from skerry._model import Model

MAX_PARTIAL = 4096
"""Bytes of a torn line that the text leaves out too; of a longer line the pieces stay."""


class Cut(Model, kw_only=False):
    """Where bytes of a stream were left out, and how many."""

    at: int
    """How many of the bytes that were kept come before it."""
    size: int
    """How many bytes were left out."""


def text_of(data: bytes, cut: Cut | None) -> str:
    """The bytes as text, with a mark such as `[… 588,695 bytes left out …]` at the cut; what is not UTF-8 is replaced.

    The mark is a separate line. The torn lines around it are left out and counted in it, so that the text has no half
    lines. In a line longer than MAX_PARTIAL the mark stands inside the line. If no bytes were kept, the text is empty.
    """
    if cut is None:
        return data.decode("utf-8", "replace")
    head, mark, tail = around(data, cut)
    return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


def around(data: bytes, cut: Cut) -> tuple[bytes, str, bytes]:
    """The bytes that the text shows before the mark, the mark, and the bytes that it shows after the mark."""
    if not data:
        return b"", "", b""
    head, tail = data[: cut.at], data[cut.at :]
    shown, line_end = _head(head), "\n"
    left_out = len(head) - shown
    line_start = tail.find(b"\n", 0, MAX_PARTIAL) + 1
    if tail and not 0 < line_start < len(tail):
        line_start, line_end = _torn_start(tail), ""
    size = left_out + cut.size + line_start
    mark = f"[… {size:,} byte{'' if size == 1 else 's'} left out …]{line_end}"
    return head[:shown], mark, tail[line_start:]


def _head(data: bytes) -> int:
    """How many of the bytes before a cut are shown."""
    line_end = data.rfind(b"\n", max(0, len(data) - MAX_PARTIAL)) + 1
    if line_end:
        return line_end
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])  # the longest character
    return len(data) - len(decoder.getstate()[0])


def _torn_start(data: bytes) -> int:
    """How many of the bytes behind a cut are the end of a character that began before it."""
    torn = 0
    while torn < min(3, len(data)) and 0x80 <= data[torn] < 0xC0:
        torn += 1
    return torn
