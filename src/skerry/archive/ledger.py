"""The hashes of all entries of an archive, in blocks between the entries, and their sum at the end.

A block follows every few thousand entries, so neither side holds more than one of them.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from skerry.archive.format import Totals
from skerry.core import Corrupted
from skerry.trees import tar

BLOCK_BYTES = 256 * 1024
MAX_BLOCK_BYTES = BLOCK_BYTES + 256 * 1024
"""A block is closed by the line that makes it full, and no line is longer than this allows."""
_PREFIX = b"hashes/"


def block_path(index: int) -> bytes:
    return b"%s%06d.txt" % (_PREFIX, index)


def is_block(path: bytes) -> bool:
    return path.startswith(_PREFIX)


@dataclass
class Ledger:
    """One line for each entry; both sides keep one, and they must come to the same."""

    blocks: int = 0
    pending_bytes: int = 0
    entries: int = 0
    files: int = 0
    directories: int = 0
    links: int = 0
    fifos: int = 0
    whiteouts: int = 0
    skipped: int = 0
    content_bytes: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _sum: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, path: bytes, header: bytes, content: hashlib._Hash | None) -> None:
        """`header` is all blocks before the content, which has every fact about the entry in it."""
        name = path.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        digest = content.hexdigest() if content is not None else "-"
        line = b"%s %s %s\n" % (digest.encode(), hashlib.sha256(header).hexdigest().encode(), name)
        self._pending.append(line)
        self.pending_bytes += len(line)

    def count(self, type: bytes, *, whiteout: bool) -> None:
        self.entries += 1
        if whiteout:
            self.whiteouts += 1
        elif type == tar.FILE:
            self.files += 1
        elif type == tar.DIRECTORY:
            self.directories += 1
        elif type == tar.FIFO:
            self.fifos += 1
        else:
            self.links += 1

    def close_block(self) -> tuple[bytes, bytes]:
        """The path and content of the block that is due."""
        block = b"".join(self._pending)
        path = block_path(self.blocks)
        self._sum.update(block)
        self._pending.clear()
        self.pending_bytes = 0
        self.blocks += 1
        return path, block

    def check_block(self, path: bytes, block: bytes) -> None:
        """Raises Corrupted, naming the first entry that is not as it was written."""
        lines = self._pending.copy()
        expected_path, expected = self.close_block()
        if path != expected_path or not lines:
            raise Corrupted(f"the archive has {path!r} where {expected_path!r} belongs")
        if block == expected:
            return
        stored = block.splitlines(keepends=True)
        for found, line in zip(stored, lines, strict=False):
            if found != line:
                name = os.fsdecode(line.rstrip(b"\n").split(b" ", 2)[2])
                raise Corrupted(f"{name!r} in the archive is not as it was written")
        raise Corrupted(f"the archive holds {len(lines)} entries where {len(stored)} were written")

    def totals(self) -> Totals:
        total = self._sum.copy()
        # A reader cannot count what was left out, so that number is hashed too.
        total.update(b"skipped %d\n" % self.skipped)
        return Totals(
            self.entries,
            self.files,
            self.directories,
            self.links,
            self.fifos,
            self.whiteouts,
            self.skipped,
            self.content_bytes,
            total.hexdigest(),
        )
