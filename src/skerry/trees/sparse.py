"""Where a file has data, and GNU tar's way to write that down (PAX sparse format 1.0)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from skerry.core import Corrupted
from skerry.trees.tar import BLOCK, padding
from skerry.trees.tar_header import TarFault, parse_number

MAX_EXTENTS = 65_536
"""Pieces of one sparse file; of one with more, the smallest holes are stored as zeros."""

Extents = list[tuple[int, int]]
"""Offset and size of each piece of data, in order."""
_MIN_GAP = 64 * 1024


def find_extents(fd: int, size: int) -> Extents:
    """Of a file with more pieces than an archive keeps, the smallest holes count as data."""
    gap = 0
    while True:
        extents = _find(fd, size, gap)
        if len(extents) <= MAX_EXTENTS:
            return extents
        gap = max(gap * 4, _MIN_GAP)


def _find(fd: int, size: int, gap: int) -> Extents:
    extents: Extents = []
    at = 0
    while at < size and len(extents) <= MAX_EXTENTS:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole up to the end
        if start >= size:
            break
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if extents and start - sum(extents[-1]) < gap:
            start = extents.pop()[0]
        extents.append((start, at - start))
    return extents


def encode_map(extents: Extents, size: int) -> bytes:
    """In whole blocks. A hole at the end is said by an empty piece after it."""
    if not extents or sum(extents[-1]) < size:
        extents = [*extents, (size, 0)]
    text = b"%d\n" % len(extents) + b"".join([b"%d\n%d\n" % extent for extent in extents])
    return text + padding(len(text))


def decode_map(read: Callable[[int], bytes], real_size: int) -> tuple[bytes, Extents]:
    """The map as stored and what it says. Raises Corrupted."""
    raw = read(BLOCK)
    head, newline, _ = raw.partition(b"\n")
    count = _number(head) if newline else 0
    if not 0 < count <= MAX_EXTENTS + 1:
        raise Corrupted("a sparse file in the archive has an impossible map")
    wanted, blocks, lines = 1 + 2 * count, [raw], raw.count(b"\n")
    while lines < wanted:
        if len(blocks) > wanted:  # each line has 20 bytes at most, so this cannot be
            raise Corrupted("a sparse file in the archive has an impossible map")
        blocks.append(read(BLOCK))
        lines += blocks[-1].count(b"\n")
    raw = b"".join(blocks)
    text = raw.split(b"\n")
    if any(text[wanted]) or len(text) != wanted + 1:
        raise Corrupted("a sparse file in the archive has an impossible map")
    numbers = [_number(line) for line in text[1:wanted]]
    extents = list(zip(numbers[::2], numbers[1::2], strict=True))
    at = 0
    for start, size in extents:
        if start < at or start + size > real_size:
            raise Corrupted("a sparse file in the archive has a map with overlaps")
        at = start + size
    if at != real_size:
        raise Corrupted("a sparse file in the archive has a map that ends too early")
    return raw, extents


def _number(text: bytes) -> int:
    try:
        return parse_number(text)
    except TarFault as fault:
        raise Corrupted(f"a sparse file in the archive has an impossible map: {fault}") from None
