"""Conditions and ranges of HTTP requests (RFC 9110) for files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skerry.core import SkerryError

_TAG = re.compile(r'(W/)?"([^"]*)"')
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
MAX_DIGITS = 18


class RangeRefused(SkerryError):
    """The requested range contains nothing of the file."""

    code = "INVALID_ARGUMENT"


@dataclass(frozen=True, slots=True)
class Part:
    """A number of bytes from an offset on."""

    offset: int
    length: int


def quoted(etag: str) -> str:
    return f'"{etag}"'


def tags(header: str, *, weak: bool = False) -> list[str] | None:
    """The etags of a header without their quotes; None: any. Weak etags match nothing, unless `weak`."""
    if header.strip() == "*":
        return None
    if '"' not in header:
        return [header.strip()]
    return [tag for mark, tag in _TAG.findall(header) if weak or not mark]


def matches(header: str, etag: str, *, weak: bool = False) -> bool:
    found = tags(header, weak=weak)
    return found is None or etag in found


def parse_range(header: str | None, size: int) -> Part | None:
    """The part of a file of that size; None: all of it, also for a header that is unknown or has several ranges.

    Raises RangeRefused for a range that begins after the end.
    """
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    if found is None or max(len(found[1]), len(found[2])) > MAX_DIGITS or not (found[1] or found[2]):
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        first, last = size - length, size - 1
        if not length:
            raise RangeRefused(f"the file has {size} bytes")
    else:
        first = int(found[1])
        last = min(int(found[2]), size - 1) if found[2] else size - 1
        if found[2] and int(found[2]) < first:
            return None
        if first >= size:
            raise RangeRefused(f"the file has {size} bytes")
    return Part(first, last - first + 1)
