"""Messages of files, watching and trees. See docs/design/wire.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import ClassVar

from skerry.wire.codec import Message, tag
from skerry.wire.fields import FieldError
from skerry.wire.frames import Type
from skerry.wire.opener import Opener, Shape

_ENTRY = struct.Struct("<I")


class FileInfoMessage(Message):
    path: bytes = tag(1)
    type_name: str = tag(2)
    size: int = tag(3)
    mode: int = tag(4)
    uid: int = tag(5)
    gid: int = tag(6)
    mtime_ns: int = tag(7)
    target: bytes = tag(8, default=b"")
    inode: int = tag(9)
    owner: str = tag(10, default="")
    group: str = tag(11, default="")
    etag: str = tag(12, default="")


class TreeInfo(FileInfoMessage):
    """The *info* of a tree's root, with what PACK will send or what UNPACK and COPY have done."""

    total_entries: int | None = tag(13, default=None)
    total_bytes: int | None = tag(14, default=None)
    files: int = tag(15, default=0)
    directories: int = tag(16, default=0)
    links: int = tag(17, default=0)
    content_bytes: int = tag(18, default=0)
    xattrs_lost: int = tag(19, default=0)


class Read(Opener):
    type: ClassVar[Type] = Type.READ
    SHAPE: ClassVar[Shape] = Shape(channels=(0,), greets=True, max_replies=2)
    path: bytes = tag(1)
    user: str = tag(2, default="")
    offset: int = tag(3, default=0)
    length: int | None = tag(4, default=None)
    window: int = tag(6, default=256 * 1024)

    def begins_at(self, channel: int) -> int:
        return self.offset


class ReadDone(Message):
    bytes_read: int = tag(1)


class WriteFlags(IntFlag):
    APPEND = 1
    PARENTS = 2
    NEW = 4


class Write(Opener):
    type: ClassVar[Type] = Type.WRITE
    SHAPE: ClassVar[Shape] = Shape(input=True)
    path: bytes = tag(1)
    user: str = tag(2, default="")
    mode: int | None = tag(3, default=None)
    flags: int = tag(4, default=0)
    if_match: str | None = tag(5, default=None)


class ListDir(Opener):
    type: ClassVar[Type] = Type.LIST
    SHAPE: ClassVar[Shape] = Shape(channels=(0,))
    path: bytes = tag(1)
    user: str = tag(2, default="")
    depth: int = tag(3, default=1)
    window: int = tag(6, default=256 * 1024)
    after: bytes = tag(7, default=b"")


class Count(Message):
    count: int = tag(1)


class StatFlags(IntFlag):
    NOFOLLOW = 1


class Stat(Opener):
    type: ClassVar[Type] = Type.STAT
    path: bytes = tag(1)
    user: str = tag(2, default="")
    flags: int = tag(3, default=0)


class MkDirFlags(IntFlag):
    PARENTS = 1


class MkDir(Opener):
    type: ClassVar[Type] = Type.MKDIR
    path: bytes = tag(1)
    user: str = tag(2, default="")
    mode: int | None = tag(3, default=None)
    flags: int = tag(4, default=0)


class RemoveFlags(IntFlag):
    RECURSIVE = 1


class Remove(Opener):
    type: ClassVar[Type] = Type.REMOVE
    path: bytes = tag(1)
    user: str = tag(2, default="")
    flags: int = tag(3, default=0)


class RenameFlags(IntFlag):
    NOREPLACE = 1


class Rename(Opener):
    type: ClassVar[Type] = Type.RENAME
    path: bytes = tag(1)
    user: str = tag(2, default="")
    target: bytes = tag(3)
    flags: int = tag(4, default=0)


class Chmod(Opener):
    type: ClassVar[Type] = Type.CHMOD
    path: bytes = tag(1)
    user: str = tag(2, default="")
    mode: int = tag(3)


class Chown(Opener):
    type: ClassVar[Type] = Type.CHOWN
    path: bytes = tag(1)
    user: str = tag(2, default="")
    owner: str | None = tag(3, default=None)
    group: str | None = tag(4, default=None)


class Symlink(Opener):
    type: ClassVar[Type] = Type.SYMLINK
    path: bytes = tag(1)
    user: str = tag(2, default="")
    target: bytes = tag(3)


class CopyFlags(IntFlag):
    RECURSIVE = 1
    PARENTS = 2
    NEW = 4


class Copy(Opener):
    type: ClassVar[Type] = Type.COPY
    path: bytes = tag(1)
    user: str = tag(2, default="")
    target: bytes = tag(3)
    flags: int = tag(4, default=0)


class Hash(Opener):
    type: ClassVar[Type] = Type.HASH
    path: bytes = tag(1)
    user: str = tag(2, default="")
    length: int | None = tag(3, default=None)


class HashReply(Message):
    sha256: bytes = tag(1)
    bytes_hashed: int = tag(2)
    entries: int = tag(3, default=1)


class WatchFlags(IntFlag):
    RECURSIVE = 1


class Watch(Opener):
    type: ClassVar[Type] = Type.WATCH
    SHAPE: ClassVar[Shape] = Shape(channels=(0,), greets=True, max_replies=2)
    path: bytes = tag(1)
    user: str = tag(2, default="")
    flags: int = tag(3, default=0)
    window: int = tag(6, default=256 * 1024)


class Watching(Message):
    directories: int = tag(1)


class Change(Message):
    """One event of a WATCH."""

    kind: str = tag(1)
    path: bytes = tag(2, default=b"")
    type_name: str = tag(3, default="")
    source: bytes = tag(4, default=b"")


class PackFlags(IntFlag):
    TOTALS = 1
    NO_CONTENT = 2


class Pack(Opener):
    type: ClassVar[Type] = Type.PACK
    SHAPE: ClassVar[Shape] = Shape(channels=(0,), greets=True, max_replies=2)
    path: bytes = tag(1)
    user: str = tag(2, default="")
    flags: int = tag(3, default=0)
    exclude: tuple[bytes, ...] = tag(4, default=())
    max_size: int | None = tag(5, default=None)
    window: int = tag(6, default=256 * 1024)


class UnpackFlags(IntFlag):
    MERGE = 1
    PARENTS = 2
    NEW = 4


class Unpack(Opener):
    type: ClassVar[Type] = Type.UNPACK
    SHAPE: ClassVar[Shape] = Shape(input=True)
    path: bytes = tag(1)
    user: str = tag(2, default="")
    flags: int = tag(3, default=0)


class TreeEntry(Message):
    """The ENTRY of a tree stream."""

    path: bytes = tag(1)
    type_name: str = tag(2)
    mode: int = tag(3, default=0)
    mtime_ns: int = tag(4, default=0)
    size: int = tag(5, default=0)
    target: bytes = tag(6, default=b"")
    same_as: bytes | None = tag(7, default=None)
    xattr: tuple[bytes, ...] = tag(8, default=())


class TreeSkipped(Message):
    """The SKIPPED of a tree stream."""

    path: bytes = tag(1)
    reason: str = tag(2)


class TreeEnd(Message):
    """The TREE_END of a tree stream."""

    entries: int = tag(1)
    content_bytes: int = tag(2)


def iter_entries(data: bytes | memoryview) -> Iterator[FileInfoMessage]:
    """The directory entries in the bytes of a LIST's DATA frame. Raises FieldError."""
    return map(FileInfoMessage.decode, _split(data))


def iter_changes(data: bytes | memoryview) -> Iterator[Change]:
    """The events in the bytes of a WATCH's DATA frame. Raises FieldError."""
    return map(Change.decode, _split(data))


def _split(data: bytes | memoryview) -> Iterator[bytes]:
    view, position = memoryview(data), 0
    while position < len(view):
        if len(view) - position < _ENTRY.size:
            raise FieldError("an entry's length is cut off")
        (length,) = _ENTRY.unpack_from(view, position)
        position += _ENTRY.size
        if length > len(view) - position:
            raise FieldError("an entry does not fit in its frame")
        yield bytes(view[position : position + length])
        position += length
