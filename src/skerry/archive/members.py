"""The members of an archive, read in the one form that Skerry writes and in no other."""

from __future__ import annotations

from skerry.archive.streams import Source
from skerry.core import Corrupted, InvalidArgument, Unsupported
from skerry.trees import BLOCK, HeaderParser, Member, TarFault, tar


class Members:
    """The headers of an archive, one after another."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._headers = HeaderParser()

    def first(self, path: bytes) -> tuple[Member, bytes]:
        """The member that an archive begins with. Raises InvalidArgument for what is not an archive, Corrupted."""
        block = self._source.read(BLOCK)
        try:
            found = self._headers.block(block)
        except TarFault as fault:
            raise InvalidArgument(f"this is not an archive of a sandbox: {fault}") from fault
        if not isinstance(found, Member) or found != Member(path, tar.FILE, size=found.size):
            raise InvalidArgument("this is not an archive of a sandbox: it does not begin with a manifest")
        return _as_written(found, block), block

    def read(self) -> tuple[Member, bytes]:
        """The next member and the blocks it was read from. Raises Corrupted."""
        source = self._source
        whole = source.read(BLOCK)
        try:
            found = self._headers.block(whole)
            if not isinstance(found, Member):
                records = source.read(found)
                self._headers.extend(records)
                padding, header = source.read(-found % BLOCK), source.read(BLOCK)
                whole = b"".join((whole, records, padding, header))
                found = self._headers.block(header)
        except TarFault as fault:
            raise Corrupted(f"the archive is damaged: {fault}") from None
        if not isinstance(found, Member):
            raise Corrupted("two extended headers in the archive belong to one member")
        return _as_written(found, whole), whole


def read_plain(source: Source, member: Member, most: int) -> bytes:
    """The content of a member that describes the archive itself. Raises Corrupted."""
    if member != Member(member.path, tar.FILE, size=member.size) or member.size > most:
        raise Corrupted(f"{member.path[:200]!r} in the archive is not as Skerry writes it")
    data = source.read(member.size)
    skip_padding(source, member.size)
    return data


def skip_padding(source: Source, size: int) -> None:
    """Raises Corrupted."""
    if size % BLOCK and source.read(-size % BLOCK) != tar.padding(size):
        raise Corrupted("there is something between the members of the archive")


def _as_written(member: Member, whole: bytes) -> Member:
    """A fact has one form, so what Skerry would not write for this member did not come from Skerry."""
    if member.type not in tar.TYPES:
        raise Corrupted(f"the archive holds a device or something else that no sandbox has (type {member.type!r})")
    try:
        written = tar.encode(member)
    except Unsupported:  # escaped as they should be, its attributes are too large
        written = b""
    if written != whole:
        raise Corrupted(f"the header of {member.path[:200]!r} in the archive is not as Skerry writes it")
    return member
