"""Sandbox files and trees as streams for a caller that passes them on; nothing touches this machine's disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager

from skerry.core import FileInfo, InvalidArgument, Transfer
from skerry.sdk.commands.request import SandboxPath, check_user, check_whole, encode, encode_path
from skerry.sdk.connection.link import FILE_GUARD
from skerry.sdk.connection.stream import Data
from skerry.sdk.files import content
from skerry.sdk.files.files import MAX_ENTRIES, READ_WINDOW, AsyncFiles
from skerry.sdk.files.info import file_info
from skerry.sdk.files.trees import SLOW_GUARD, WINDOW, check_names, read_tree_info, summary
from skerry.trees import Decoder, End, Entry, Record, Tally, TreeError
from skerry.wire import Count, FieldError, ListDir, Pack, Read, Unpack, UnpackFlags, iter_entries


@asynccontextmanager
async def read_stream(
    files: AsyncFiles, path: SandboxPath, *, offset: int = 0, length: int | None = None, user: str | None = None
) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
    """A file's info and its content from `offset` on, both of the same open file. Raises as `AsyncFiles.read`."""
    message = Read(path=encode_path(path), user=check_user(user), offset=offset, length=length, window=READ_WINDOW)
    async with files._link.open(message) as stream:
        yield await content.head(stream), content.body(stream)


async def list_stream(
    files: AsyncFiles, path: SandboxPath, *, depth: int, after: str, user: str | None
) -> AsyncGenerator[Iterator[FileInfo], None]:
    """The entries of a directory after the path `after`, as they come; each iterator is used up before the next.

    By the bytes of their names, a directory before what is in it. Raises as `AsyncFiles.list`.
    """
    past = encode(after, "after")
    message = ListDir(
        path=encode_path(path), user=check_user(user), depth=check_whole(depth, "depth", least=1), after=past
    )
    names = past.split(b"/") if past else []
    count = 0
    async with files._link.open(message) as stream:

        def entries(data: bytes) -> Iterator[FileInfo]:
            nonlocal count
            try:
                for entry in iter_entries(data):
                    count += 1
                    # An agent from before there was `after` sends all.
                    if not names or entry.path.split(b"/") > names:
                        yield file_info(stream, entry)
            except FieldError as error:
                raise stream.corrupt(f"directory entry: {error}") from error

        while isinstance(item := await stream.next(FILE_GUARD), Data):
            yield entries(bytes(item.data))
            stream.took(0, len(item.data))
            if count > MAX_ENTRIES:
                raise InvalidArgument(f"{path} has too many entries to list", hint="use a smaller depth")
        if not item.final or stream.decode(Count, item.payload).count != count:
            raise stream.corrupt("a list that does not have as many entries as it says")


@asynccontextmanager
async def pack_stream(
    files: AsyncFiles, path: SandboxPath, *, exclude: Collection[str] = (), user: str | None = None
) -> AsyncIterator[tuple[FileInfo, AsyncIterator[Record]]]:
    """The info of a tree's root, and the records of the tree; a Content's bytes are good until the next record."""
    names = tuple(encode(name, "exclude") for name in check_names(exclude))
    message = Pack(path=encode_path(path), user=check_user(user), exclude=names, window=WINDOW)
    async with files._link.open(message) as stream:
        info, _ = read_tree_info(stream, await stream.next(SLOW_GUARD), final=False)

        async def records() -> AsyncIterator[Record]:
            decoder, entries = Decoder(), 0
            end: End | None = None
            try:
                while isinstance(item := await stream.next(FILE_GUARD), Data):
                    for record in decoder.feed(bytes(item.data)):
                        if end is not None:
                            raise TreeError("a record after the end of the tree")
                        entries += isinstance(record, Entry)
                        end = record if isinstance(record, End) else None
                        yield record
                    stream.took(0, len(item.data))
                if end is None or not decoder.complete or end.entries != entries:
                    raise TreeError("a tree that is not complete")
            except TreeError as error:
                raise stream.corrupt(f"tree: {error}") from error
            read_tree_info(stream, item, final=True)

        yield info, records()


async def unpack_stream(
    files: AsyncFiles,
    path: SandboxPath,
    batches: AsyncIterator[bytes],
    tally: Tally,
    *,
    merge: bool = False,
    user: str | None = None,
) -> Transfer:
    """Write a tree stream that comes in pieces; `tally` has counted what is in it when they end.

    If `batches` raises, nothing is left. Raises as `AsyncFiles.upload` does for what is inside.
    """
    flags = UnpackFlags.PARENTS | (UnpackFlags.MERGE if merge else 0)
    message = Unpack(path=encode_path(path), user=check_user(user), flags=int(flags))
    async with files._link.open(message) as stream:
        async for batch in batches:
            if not await stream.send(batch):
                break
        await stream.send(b"", end=True)
        info, written = read_tree_info(stream, await stream.next(SLOW_GUARD), final=True)
        if (written.files, written.directories, written.links) != (tally.files, tally.directories, tally.links):
            raise stream.corrupt("an UNPACK that did not write what it was sent")
    tally.xattrs_lost += written.xattrs_lost
    return summary(info, tally)
