"""File contents on their way in and out, in constant memory."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import BinaryIO

import anyio

from skerry.core.errors import InvalidArgument, IsADirectory, Unsupported
from skerry.core.models import FileInfo
from skerry.sdk.commands import check_bytes, feed
from skerry.sdk.fileinfo import file_info
from skerry.sdk.link import FILE_GUARD
from skerry.sdk.stream import Data, Reply, Stream
from skerry.wire import FileInfoMessage, ReadDone

Progress = Callable[[int, int], object]
"""Called with the bytes done and the bytes in all."""

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


async def counted(chunks: AsyncIterable[bytes], total: int, on_progress: Progress | None) -> AsyncIterator[bytes]:
    done = 0
    async for data in chunks:
        yield data
        done += len(data)
        if on_progress is not None:
            on_progress(done, total)


@contextlib.asynccontextmanager
async def open_local(local: str | os.PathLike[str]) -> AsyncIterator[tuple[AsyncIterator[bytes], int, int]]:
    """A local regular file's chunks, permission bits and size."""
    path = os.fspath(local)

    # Without O_NONBLOCK the open of a FIFO would wait for its writer.
    fd = await anyio.to_thread.run_sync(os.open, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise Unsupported(f"{path} is a directory: only single files can be uploaded yet", option="upload")
        if not stat.S_ISREG(info.st_mode):
            raise InvalidArgument(f"{path} is not a regular file")
        yield _read_fd(fd), stat.S_IMODE(info.st_mode) & 0o777, info.st_size
    finally:
        os.close(fd)


async def _read_fd(fd: int) -> AsyncIterator[bytes]:
    while data := await anyio.to_thread.run_sync(os.read, fd, CHUNK):
        yield data


async def fetch(stream: Stream, local: str | os.PathLike[str], on_progress: Progress | None) -> FileInfo:
    """Write the answer of a READ to `local`, which appears when it is complete."""
    path = os.fspath(local)
    info = await head(stream)
    with _replacing(path) as fd:
        done = 0
        async for parts in gathered(body(stream)):
            await anyio.to_thread.run_sync(_write_all, fd, parts)
            done += sum(map(len, parts))
            if on_progress is not None:
                on_progress(done, max(info.size, done))
        os.fchmod(fd, info.mode & 0o777)
    return info


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[int]:
    """A new file that takes the place of `path` at the end, or goes away when the block fails."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectory(f"{path} is a directory", hint="name the file to write")
    directory, name = os.path.split(os.path.abspath(path))
    fd, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=directory)
    try:
        try:
            yield fd
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


async def gathered(parts: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Parts in groups of about CHUNK bytes, so that one trip to a thread writes many."""
    group: list[bytes] = []
    size = 0
    async for part in parts:
        group.append(part)
        size += len(part)
        if size >= CHUNK // 2:
            yield group
            group, size = [], 0
    if group:
        yield group


def _write_all(fd: int, parts: list[bytes]) -> None:
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]
