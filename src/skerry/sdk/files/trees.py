"""Files and directories on their way in and out of a sandbox, in constant memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from functools import partial

import anyio

from skerry.core import FileInfo, InvalidArgument, Transfer, in_thread
from skerry.sdk.commands.request import check_user, encode, encode_path
from skerry.sdk.connection.link import FILE_GUARD, Link
from skerry.sdk.connection.stream import Data, Reply, Stream
from skerry.sdk.files.info import file_info
from skerry.trees import Packer, Tally, TreeError, Unpacker, count_tree
from skerry.wire import Pack, PackFlags, TreeInfo, Unpack, UnpackFlags

Progress = Callable[[int, int], object]
"""Called with the bytes done and the bytes in all: sizes of files, holes included."""

WINDOW = 2 * 1024 * 1024
BATCH = 1024 * 1024
SLOW_GUARD = 600.0
"""How long an agent may count a tree, or remove the one that was replaced."""


async def upload(
    link: Link,
    local: str | os.PathLike[str],
    remote: object,
    *,
    merge: bool,
    exclude: Collection[str],
    user: str | None,
    on_progress: Progress | None,
) -> Transfer:
    """See `AsyncFiles.upload`."""
    path, names, total = os.fspath(local), check_names(exclude), 0
    await anyio.to_thread.run_sync(os.stat, path)  # what is not there is said before anything happens inside
    if on_progress is not None:
        total = await anyio.to_thread.run_sync(count_tree, path, names)
    flags = UnpackFlags.PARENTS | (UnpackFlags.MERGE if merge else 0)
    message = Unpack(path=encode_path(remote), user=check_user(user), flags=int(flags))
    packer = Packer(path, names)
    async with link.open(message) as stream, _batches(packer) as batches:
        async for batch, done in batches:
            if not await stream.send(batch):
                break
            if on_progress is not None:
                on_progress(done, max(total, done))
        await stream.send(b"", end=True)
        item = await stream.next(SLOW_GUARD)
        info, written = read_tree_info(stream, item, final=True)
        tally = packer.tally
        if (written.files, written.directories, written.links) != (tally.files, tally.directories, tally.links):
            raise stream.corrupt("an UNPACK that did not write what it was sent")
    tally.xattrs_lost += written.xattrs_lost
    return summary(info, tally)


@contextlib.asynccontextmanager
async def _batches(packer: Packer) -> AsyncIterator[AsyncIterator[tuple[bytes | memoryview, int]]]:
    """The stream's pieces and how far each has come; one is made in a thread while the one before is sent."""
    source = packer.batches()
    task: asyncio.Task[tuple[bytes | memoryview, int] | None] | None = None

    def make() -> tuple[bytes | memoryview, int] | None:
        batch = next(source, None)
        return None if batch is None else (batch, packer.tally.done)

    async def run() -> tuple[bytes | memoryview, int] | None:
        return await in_thread(make)

    async def pieces() -> AsyncGenerator[tuple[bytes | memoryview, int], None]:
        nonlocal task
        task = asyncio.create_task(run())
        while (piece := await task) is not None:
            task = asyncio.create_task(run())
            yield piece

    try:
        async with contextlib.aclosing(pieces()) as made:
            yield made
    finally:
        if task is not None and not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True), contextlib.suppress(asyncio.CancelledError, OSError):
                await task
        source.close()


async def download(
    link: Link,
    remote: object,
    local: str | os.PathLike[str],
    *,
    merge: bool,
    exclude: Collection[str],
    user: str | None,
    on_progress: Progress | None,
) -> Transfer:
    """See `AsyncFiles.download`."""
    path = os.fspath(local)
    message = Pack(
        path=encode_path(remote),
        user=check_user(user),
        flags=0 if on_progress is None else int(PackFlags.TOTALS),
        exclude=tuple(encode(name, "exclude") for name in check_names(exclude)),
        window=WINDOW,
    )
    async with link.open(message) as stream:
        info, first = read_tree_info(stream, await stream.next(SLOW_GUARD), final=False)
        unpacker = await in_thread(lambda: Unpacker(path, merge=merge))
        try:
            last = await _receive(stream, unpacker, first.total_bytes or 0, on_progress)
            tally = unpacker.tally
            sent = (last.files, last.directories, last.links, last.content_bytes)
            if sent != (tally.files, tally.directories, tally.links, tally.bytes):
                raise TreeError("a tree that does not hold what it says")
            await in_thread(unpacker.commit)
        except TreeError as error:
            raise stream.corrupt(f"tree: {error}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(unpacker.close)
    tally.xattrs_lost += last.xattrs_lost
    return summary(info, tally)


async def _receive(stream: Stream, unpacker: Unpacker, total: int, on_progress: Progress | None) -> TreeInfo:
    """Everything up to the last answer. Many frames go to the thread at once."""
    while True:
        item = await stream.next(FILE_GUARD)
        parts, size = [], 0
        while isinstance(item, Data):
            parts.append(item.data)
            size += len(item.data)
            if size >= BATCH or not stream.pending:
                break
            item = await stream.next(FILE_GUARD)
        if size:
            await in_thread(partial(unpacker.feed, *parts))
            stream.took(0, size)
            if on_progress is not None:
                on_progress(unpacker.tally.done, max(total, unpacker.tally.done))
        if isinstance(item, Reply):
            return read_tree_info(stream, item, final=True)[1]


def read_tree_info(stream: Stream, item: Data | Reply, *, final: bool) -> tuple[FileInfo, TreeInfo]:
    if not isinstance(item, Reply) or item.final != final:
        raise stream.corrupt("an answer to a tree request out of its order")
    message = stream.decode(TreeInfo, item.payload)
    return file_info(stream, message), message


def summary(info: FileInfo, tally: Tally) -> Transfer:
    return Transfer(
        info=info,
        files=tally.files,
        directories=tally.directories,
        links=tally.links,
        bytes=tally.bytes,
        skipped=tuple(tally.skipped),
        xattrs_lost=tally.xattrs_lost,
    )


def check_names(exclude: Collection[object]) -> frozenset[str]:
    """Raises InvalidArgument for what cannot be the name of a file."""
    if isinstance(exclude, str):
        raise InvalidArgument("exclude must be several names, not one string")
    names = set()
    for name in exclude:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name:
            raise InvalidArgument(f"{name!r} is not the name of a file")
        names.add(name)
    return frozenset(names)
