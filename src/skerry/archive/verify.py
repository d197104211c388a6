"""A layer of an archive that is read to its end and written nowhere: what it says is compared with its hashes."""

from __future__ import annotations

from skerry.archive.unpack import Content
from skerry.core import Corrupted
from skerry.trees import Member, overlay, sparse, tar

_READ = 512 * 1024


class Unwritten:
    """As `unpack.Layer`, without a directory."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix

    def add(self, member: Member, content: Content) -> bool:
        """Whether it was a mark of the overlay. Raises Corrupted."""
        name = member.path.rpartition(b"/")[2]
        if member.type != tar.FILE:
            return False
        if name.startswith(overlay.WHITEOUT) and not member.literal:
            return True
        left = member.size
        if member.real_size is not None:
            layout, _ = sparse.decode_map(content.layout, member.real_size)
            left -= len(layout)
            if left < 0:
                raise Corrupted(f"{member.path[:200]!r} in the archive has another size than its pieces")
        while left:
            left -= len(content.data(min(left, _READ)))
        return False

    def close_directories(self) -> None:
        pass
