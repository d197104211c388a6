"""File contents on their way in and out, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import BinaryIO

import anyio

from skerry.core import FileInfo
from skerry.sdk.commands.request import check_bytes, feed
from skerry.sdk.connection.link import FILE_GUARD
from skerry.sdk.connection.stream import Data, Reply, Stream
from skerry.sdk.files.info import file_info
from skerry.wire import FileInfoMessage, ReadDone

CHUNK = 1024 * 1024


async def head(stream: Stream) -> FileInfo:
    """The first answer to a READ."""
    item = await stream.next(FILE_GUARD)
    if not isinstance(item, Reply) or item.final:
        raise stream.corrupt("a READ that does not begin with the file's info")
    return file_info(stream, stream.decode(FileInfoMessage, item.payload))


async def body(stream: Stream) -> AsyncIterator[bytes]:
    """The bytes of a READ after its head; raises Corrupted unless all of them came."""
    size, ended = 0, False
    while isinstance(item := await stream.next(FILE_GUARD), Data):
        size += len(item.data)
        ended = item.end
        if item.data:
            yield bytes(item.data)
            stream.took(0, len(item.data))
    if not item.final or not ended or stream.decode(ReadDone, item.payload).bytes_read != size:
        raise stream.corrupt("a file that does not have as many bytes as it says")


async def content(stream: Stream) -> AsyncIterator[bytes]:
    await head(stream)
    async for part in body(stream):
        yield part


async def store(stream: Stream, source: bytes | str | Iterable[bytes] | AsyncIterable[bytes]) -> FileInfo:
    """Send the content of a WRITE; the file's info once it is in place."""
    await feed(stream, source)
    item = await stream.next(FILE_GUARD)
    if not isinstance(item, Reply) or not item.final:
        raise stream.corrupt("a WRITE that is not answered by the file's info")
    return file_info(stream, stream.decode(FileInfoMessage, item.payload))


async def read_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """A binary file's bytes up to its end, read in a thread."""
    while True:
        data = await anyio.to_thread.run_sync(file.read, CHUNK)
        if not data:
            return
        check_bytes(data)
        yield data
