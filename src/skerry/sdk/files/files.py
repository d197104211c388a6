"""Files of a sandbox, read and written with the rights of its user."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Sequence
from os import PathLike
from typing import BinaryIO, TypeGuard

from skerry.core import FileInfo, FileMissing, InvalidArgument, NotADirectory, Transfer
from skerry.sdk.commands.request import SandboxPath, check_user, check_whole, encode, encode_path
from skerry.sdk.connection.link import FILE_GUARD, Link
from skerry.sdk.connection.stream import Data, Reply, Stream
from skerry.sdk.files import content, resumable, trees
from skerry.sdk.files import glob as globbing
from skerry.sdk.files import search as find
from skerry.sdk.files.info import file_info
from skerry.sdk.files.search import Replacement, SearchResult
from skerry.sdk.files.trees import Progress
from skerry.sdk.files.watch import AsyncWatch
from skerry.wire import (
    Chmod,
    Chown,
    Copy,
    CopyFlags,
    Count,
    FieldError,
    FileInfoMessage,
    Hash,
    HashReply,
    ListDir,
    MkDir,
    MkDirFlags,
    Opener,
    Read,
    Remove,
    RemoveFlags,
    Rename,
    RenameFlags,
    Stat,
    StatFlags,
    Symlink,
    Watch,
    WatchFlags,
    Write,
    WriteFlags,
    iter_entries,
)

FileData = bytes | str | Iterable[bytes] | AsyncIterable[bytes] | BinaryIO
"""What can be written: text is UTF-8; a binary file is read to its end."""

Transfers = list[Transfer]

MAX_READ = 256 * 1024 * 1024
MAX_ENTRIES = 1_000_000
MAX_LIST_BYTES = 256 * 1024 * 1024
READ_WINDOW = 1024 * 1024
SLOW_GUARD = 600.0
MAX_SEARCHED = 8 << 20


class AsyncFiles:
    """Relative paths start at the working directory. `user` acts with another user's rights.

    Every method raises FileMissing, PermissionDenied, NotADirectory and ReadOnly where they apply, DiskFull when the
    disk has no room, and InvalidArgument for an empty path or one with a NUL byte.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def read(self, path: SandboxPath, *, user: str | None = None, max_bytes: int = MAX_READ) -> bytes:
        """The whole content of a regular file.

        Raises:
            InvalidArgument: it is larger than `max_bytes`.
            IsADirectory, NotAFile: there is something else under that name.
        """
        parts = []
        size = 0
        async for part in self.read_stream(path, length=max_bytes + 1, user=user):
            size += len(part)
            if size > max_bytes:
                hint = "use read_stream or download, or raise max_bytes"
                raise InvalidArgument(f"{path} is larger than {max_bytes} bytes", hint=hint)
            parts.append(part)
        return b"".join(parts)

    async def read_text(
        self, path: SandboxPath, *, encoding: str = "utf-8", user: str | None = None, max_bytes: int = MAX_READ
    ) -> str:
        """The whole content as text. Raises as `read` does, and UnicodeDecodeError."""
        return (await self.read(path, user=user, max_bytes=max_bytes)).decode(encoding)

    async def read_stream(
        self, path: SandboxPath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """The content piece by piece, in constant memory. Raises as `read` does."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument("offset and length cannot be negative")
        message = Read(path=encode_path(path), user=check_user(user), offset=offset, length=length, window=READ_WINDOW)
        async with self._link.open(message) as stream:
            async for part in content.content(stream):
                yield part

    async def write(
        self,
        path: SandboxPath,
        data: FileData,
        *,
        mode: int | None = None,
        parents: bool = True,
        overwrite: bool = True,
        if_match: str | None = None,
        user: str | None = None,
    ) -> FileInfo:
        """Write a file at once: it has the old content or all of the new one, never a part.

        A file that exists keeps its mode and owner; a new one gets `mode` (0644). Missing directories are made unless
        `parents` is False.

        Raises:
            AlreadyExists: `overwrite` is False and the file exists.
            Conflict: the file no longer has the etag `if_match`; with an empty etag: the file exists.
        """
        flags = (WriteFlags.PARENTS if parents else 0) | (0 if overwrite else WriteFlags.NEW)
        return await self._write(path, data, int(flags), mode, user, if_match)

    async def append(
        self,
        path: SandboxPath,
        data: FileData,
        *,
        mode: int | None = None,
        parents: bool = True,
        user: str | None = None,
        if_match: str | None = None,
    ) -> FileInfo:
        """Add to the end of a file, in place; a missing file is made.

        Raises Conflict when the file does not have the etag `if_match` before; with an empty etag: when the file
        exists.
        """
        flags = WriteFlags.APPEND | (WriteFlags.PARENTS if parents else 0)
        return await self._write(path, data, int(flags), mode, user, if_match)

    async def _write(
        self,
        path: SandboxPath,
        data: FileData,
        flags: int,
        mode: int | None,
        user: str | None,
        if_match: str | None = None,
    ) -> FileInfo:
        message = Write(
            path=encode_path(path), user=check_user(user), mode=_check_mode(mode), flags=flags, if_match=if_match
        )
        source = content.read_chunks(data) if is_binary_file(data) else data
        async with self._link.open(message) as stream:
            return await content.store(stream, source)

    async def glob(self, pattern: str, *, path: SandboxPath = ".", user: str | None = None) -> list[FileInfo]:
        """The paths that match a pattern with `*`, `?`, `[…]`, `{a,b}` and `**`, sorted; an empty list if none does.

        Paths are relative to `path` unless the pattern is absolute. As in shells, only a pattern that begins with a dot
        matches a name that does, a slash at the end means directories, and a backslash takes the next character
        literally. Links are matched and not followed.

        Raises InvalidArgument for a pattern that makes no sense.
        """
        encode_path(path)
        return await globbing.find(self, pattern, path, user)

    async def search(
        self,
        pattern: str,
        path: SandboxPath = ".",
        *,
        regex: bool = True,
        ignore_case: bool = False,
        glob: str | None = None,
        exclude: Collection[str] = (".git",),
        max_matches: int = 1000,
        max_file_size: int = MAX_SEARCHED,
        user: str | None = None,
    ) -> SearchResult:
        """The lines in a file, or in all files of a directory, that match a Python regular expression, or a text.

        The client searches, in constant memory: this needs no program in the sandbox. `glob` chooses files by name, or
        by path below `path` if it has a slash; a name in `exclude` is left out with all below it. Links are not
        followed, a file with several names is searched once, binary and larger files are skipped.

        Raises InvalidArgument for an invalid expression, PermissionDenied where something may not be read.
        """
        query = find.Query(
            pattern=find.compile_pattern(pattern, regex=regex, ignore_case=ignore_case),
            names=None if glob is None else globbing.name_filter(glob),
            exclude=tuple(encode(name, "exclude") for name in trees.check_names(exclude)),
            max_matches=check_whole(max_matches, "max_matches", least=1),
            max_file_size=check_whole(max_file_size, "max_file_size", least=1),
        )
        return await find.search(self._link, path, query, user)

    async def replace(
        self,
        old: str,
        new: str,
        path: SandboxPath,
        *,
        regex: bool = False,
        count: int | None = None,
        user: str | None = None,
    ) -> Replacement:
        """Replace a text, or with `regex` what matches, in a file or in every file that a pattern as for `glob` finds.

        At most `count` times in each file. Each file is written at once, and only if nobody has changed it in the
        meantime; a file that is not UTF-8 text is left alone.

        Raises InvalidArgument, and Conflict for a file that was changed; the files before it are done.
        """
        edit = find.Edit(
            pattern=find.compile_pattern(old, regex=regex),
            new=find.check_new(new),
            regex=regex,
            count=0 if count is None else check_whole(count, "count", least=1),
        )
        paths: Sequence[SandboxPath] = [path]
        if find.has_pattern(path):
            paths = [info.path for info in await self.glob(str(path), user=user) if info.type == "file"]
        done = {str(one): await find.replace_in(self._link, one, edit, user) for one in paths}
        return Replacement(
            files={name: times for name, times in done.items() if times},
            skipped=tuple(name for name, times in done.items() if times is None),
        )

    async def list(self, path: SandboxPath = ".", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        """The entries of a directory, and of those below it down to `depth`, sorted by path.

        Paths are relative to `path`; links are not followed. Raises InvalidArgument for more than a million entries.
        """
        message = ListDir(path=encode_path(path), user=check_user(user), depth=check_whole(depth, "depth", least=1))
        entries: list[FileInfo] = []
        size = 0
        async with self._link.open(message) as stream:
            while isinstance(item := await stream.next(FILE_GUARD), Data):
                size += len(item.data)
                entries += _entries(stream, item)
                stream.took(0, len(item.data))
                if len(entries) > MAX_ENTRIES or size > MAX_LIST_BYTES:
                    raise InvalidArgument(f"{path} has too many entries to list", hint="use a smaller depth")
            if not item.final or stream.decode(Count, item.payload).count != len(entries):
                raise stream.corrupt("a list that does not have as many entries as it says")
        return sorted(entries, key=lambda entry: entry.path)

    async def stat(self, path: SandboxPath, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """Information about a path; with `follow=False`, about a link itself."""
        flags = 0 if follow else int(StatFlags.NOFOLLOW)
        return await self._info(Stat(path=encode_path(path), user=check_user(user), flags=flags))

    async def exists(self, path: SandboxPath, *, user: str | None = None) -> bool:
        """Whether a path exists; a link to nothing does not. Raises PermissionDenied."""
        try:
            await self.stat(path, user=user)
        except (FileMissing, NotADirectory):
            return False
        return True

    async def mkdir(
        self, path: SandboxPath, *, mode: int | None = None, parents: bool = True, user: str | None = None
    ) -> FileInfo:
        """Make a directory. With `parents`, missing ones above it are made too, and one that exists is not an error.

        Raises AlreadyExists.
        """
        flags = int(MkDirFlags.PARENTS) if parents else 0
        return await self._info(
            MkDir(path=encode_path(path), user=check_user(user), mode=_check_mode(mode), flags=flags)
        )

    async def remove(self, path: SandboxPath, *, recursive: bool = False, user: str | None = None) -> int:
        """Remove a file, a link itself, or a directory. Returns the number of things removed. Raises NotEmpty."""
        flags = int(RemoveFlags.RECURSIVE) if recursive else 0
        message = Remove(path=encode_path(path), user=check_user(user), flags=flags)
        return (await self._link.request(message, Count, guard=SLOW_GUARD)).count

    async def rename(
        self, path: SandboxPath, target: SandboxPath, *, overwrite: bool = True, user: str | None = None
    ) -> FileInfo:
        """Move a file or directory to another name. Raises AlreadyExists where `overwrite` is False."""
        flags = 0 if overwrite else int(RenameFlags.NOREPLACE)
        message = Rename(
            path=encode_path(path), user=check_user(user), target=encode_path(target, "target"), flags=flags
        )
        return await self._info(message)

    async def chmod(self, path: SandboxPath, mode: int, *, user: str | None = None) -> FileInfo:
        """Set the permission bits."""
        checked = _check_mode(mode)
        assert checked is not None
        return await self._info(Chmod(path=encode_path(path), user=check_user(user), mode=checked))

    async def chown(
        self, path: SandboxPath, *, owner: str | None = None, group: str | None = None, user: str | None = None
    ) -> FileInfo:
        """Set the owner or the group, by name or number."""
        if owner is None and group is None:
            raise InvalidArgument("chown needs an owner or a group")
        return await self._info(Chown(path=encode_path(path), user=check_user(user), owner=owner, group=group))

    async def symlink(self, path: SandboxPath, target: SandboxPath, *, user: str | None = None) -> FileInfo:
        """Make a symbolic link at `path` that points to `target`. Raises AlreadyExists."""
        message = Symlink(path=encode_path(path), user=check_user(user), target=encode_path(target, "target"))
        return await self._info(message)

    async def copy(
        self,
        path: SandboxPath,
        target: SandboxPath,
        *,
        overwrite: bool = True,
        parents: bool = True,
        user: str | None = None,
    ) -> FileInfo:
        """Copy a file or a whole directory within the sandbox; the copy appears when it is complete.

        Modes, times, links, hard links and holes are kept. An existing file is replaced unless `overwrite` is False.

        Raises:
            AlreadyExists: the target is a directory, or exists and `overwrite` is False.
            InvalidArgument: the target is inside the directory that is copied.
        """
        flags = CopyFlags.RECURSIVE
        flags |= (CopyFlags.PARENTS if parents else 0) | (0 if overwrite else CopyFlags.NEW)
        message = Copy(
            path=encode_path(path), user=check_user(user), target=encode_path(target, "target"), flags=int(flags)
        )
        return await self._info(message, guard=SLOW_GUARD)

    async def hash(self, path: SandboxPath, *, user: str | None = None) -> str:
        """The SHA-256 of a file's content, or of a directory: its names, types, modes and contents. In hexadecimal."""
        message = Hash(path=encode_path(path), user=check_user(user))
        return (await self._link.request(message, HashReply, guard=SLOW_GUARD)).sha256.hex()

    async def upload(
        self,
        local: str | PathLike[str],
        remote: SandboxPath,
        *,
        merge: bool = False,
        exclude: Collection[str] = (),
        resume: bool = False,
        user: str | None = None,
        on_progress: Progress | None = None,
    ) -> Transfer:
        """Copy a local file or directory into the sandbox, in constant memory, under exactly the name `remote`.

        Permission bits, times, links, hard links, holes and user attributes are kept. What is at `remote` is replaced
        as a whole when all has arrived, or not at all; with `merge`, a directory keeps what else it has. `exclude` has
        names to leave out wherever they are. `resume` is for a single large file: the upload continues where an earlier
        try ended, and connects again by itself; then only content and permission bits are kept. `on_progress` is called
        with the bytes sent and the total.

        Raises:
            OSError: the local side cannot be read.
            IsADirectory, NotADirectory: a file would take the place of a directory, or the other way round.
            DiskFull: there is no room in the sandbox; what was there stays.
            Conflict: with `resume`: others upload the same file at the same time.
        """
        if not resume:
            return await trees.upload(
                self._link, local, remote, merge=merge, exclude=exclude, user=user, on_progress=on_progress
            )
        if merge or exclude:
            raise InvalidArgument("resume is for a single file: merge and exclude cannot be given too")
        return await resumable.upload(self, os.fspath(local), remote, user=user, on_progress=on_progress)

    async def download(
        self,
        remote: SandboxPath,
        local: str | PathLike[str],
        *,
        merge: bool = False,
        exclude: Collection[str] = (),
        user: str | None = None,
        on_progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file or directory out of the sandbox, in constant memory, under exactly the name `local`.

        The same is kept as by `upload`, except setuid and setgid bits. No link of the sandbox is ever followed; a link
        at `local` is replaced. What is at `local` is replaced as a whole when all has arrived, or not at all; with
        `merge`, a directory keeps what else it has.

        Raises:
            OSError: the local side cannot be written; nothing is left of the attempt.
            IsADirectory, NotADirectory: a file would take the place of a directory, or the other way round.
            Corrupted: the sandbox did not send a valid tree.
        """
        return await trees.download(
            self._link, remote, local, merge=merge, exclude=exclude, user=user, on_progress=on_progress
        )

    def watch(self, path: SandboxPath = ".", *, recursive: bool = True, user: str | None = None) -> AsyncWatch:
        """The changes at and below `path`, as they happen; see AsyncWatch. Links are not followed.

        Raises InvalidArgument. Everything else is raised where the watch begins.
        """
        flags = int(WatchFlags.RECURSIVE) if recursive else 0
        return AsyncWatch(self._link, Watch(path=encode_path(path), user=check_user(user), flags=flags))

    async def upload_all(
        self,
        pairs: Iterable[tuple[str | PathLike[str], SandboxPath]],
        *,
        merge: bool = False,
        exclude: Collection[str] = (),
        user: str | None = None,
    ) -> Transfers:
        """Upload each local file or directory to its remote name, in order. Stops at the first that fails."""
        return [await self.upload(local, remote, merge=merge, exclude=exclude, user=user) for local, remote in pairs]

    async def download_all(
        self,
        pairs: Iterable[tuple[SandboxPath, str | PathLike[str]]],
        *,
        merge: bool = False,
        exclude: Collection[str] = (),
        user: str | None = None,
    ) -> Transfers:
        """Download each remote file or directory to its local name, in order. Stops at the first that fails."""
        return [await self.download(remote, local, merge=merge, exclude=exclude, user=user) for remote, local in pairs]

    async def _info(self, message: Opener, *, guard: float = FILE_GUARD) -> FileInfo:
        async with self._link.open(message) as stream:
            item = await stream.next(guard)
            if not isinstance(item, Reply) or not item.final:
                raise stream.corrupt("an answer that is not the last where only one is due")
            return file_info(stream, stream.decode(FileInfoMessage, item.payload))


def is_binary_file(data: FileData) -> TypeGuard[BinaryIO]:
    return hasattr(data, "read")


def _entries(stream: Stream, item: Data) -> list[FileInfo]:
    try:
        return [file_info(stream, entry) for entry in iter_entries(bytes(item.data))]
    except FieldError as error:
        raise stream.corrupt(f"directory entry: {error}") from error


def _check_mode(mode: int | None) -> int | None:
    if mode is not None and check_whole(mode, "mode", least=0) > 0o7777:
        raise InvalidArgument(f"{mode!r} are not permission bits")
    return mode
