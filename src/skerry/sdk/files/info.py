"""What an agent says about a file, checked."""

from __future__ import annotations

from typing import get_args

from skerry.core import FileInfo, FileType
from skerry.sdk.commands.request import decode
from skerry.sdk.connection.stream import Stream
from skerry.wire import FileInfoMessage

_TYPES: dict[str, FileType] = {name: name for name in get_args(FileType)}


def file_info(stream: Stream, message: FileInfoMessage) -> FileInfo:
    """Ends the session and raises Corrupted for what no file can be."""
    kind = _TYPES.get(message.type_name)
    if kind is None:
        raise stream.corrupt(f"unknown file type {message.type_name[:40]!r}")
    if message.size < 0 or not 0 <= message.mode <= 0o7777 or message.uid < 0 or message.gid < 0:
        raise stream.corrupt("impossible numbers for a file")
    if not message.etag.isascii() or not message.etag.isprintable() or '"' in message.etag:
        raise stream.corrupt("an etag that no header can hold")
    return FileInfo(
        path=decode(message.path),
        type=kind,
        size=message.size,
        mode=message.mode,
        uid=message.uid,
        gid=message.gid,
        mtime=message.mtime_ns / 1e9,
        mtime_ns=message.mtime_ns,
        inode=message.inode,
        target=decode(message.target) if kind == "link" else None,
        owner=message.owner or None,
        group=message.group or None,
        etag=message.etag,
    )
