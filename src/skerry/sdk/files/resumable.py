"""An upload of one file that continues where it was cut off."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio

from skerry.core import Conflict, ConnectionLost, FileInfo, FileMissing, InvalidArgument, Transfer
from skerry.sdk.commands.request import SandboxPath
from skerry.sdk.files.trees import Progress

if TYPE_CHECKING:
    from skerry.sdk.files.files import AsyncFiles

CHUNK = 1024 * 1024
ATTEMPTS = 5
PAUSE = 0.5


async def upload(
    files: AsyncFiles, local: str, remote: SandboxPath, *, user: str | None, on_progress: Progress | None
) -> Transfer:
    """Append to a part file beside the target until it is complete; connect again when the connection is lost."""
    fd = await anyio.to_thread.run_sync(os.open, local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidArgument(f"{local} is not a regular file: only a file can be resumed")
        directory, name = posixpath.split(str(remote))
        prefix = f".{name[:150]}.skerry-part-"
        mine = prefix + _key(local, info)
        part = posixpath.join(directory, mine)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await _forget_others(files, directory or ".", prefix, mine, user)
                whole = await _append(files, fd, part, info.st_size, user, on_progress)
                now = os.fstat(fd)
                if (now.st_size, now.st_mtime_ns) != (info.st_size, info.st_mtime_ns):
                    await files.remove(part, user=user)
                    raise InvalidArgument(f"{local} was changed while it was uploaded", hint="upload it again")
                placed = await _place(files, part, whole, stat.S_IMODE(info.st_mode), remote, user)
                break
            except (ConnectionLost, FileMissing, Conflict) as error:
                if attempt == ATTEMPTS and isinstance(error, FileMissing):
                    raise _others(part) from error
                if attempt == ATTEMPTS:
                    raise
                await anyio.sleep(PAUSE * attempt)
    finally:
        os.close(fd)
    return Transfer(info=placed, files=1, directories=0, links=0, bytes=info.st_size, skipped=(), xattrs_lost=0)


def _key(local: str, info: os.stat_result) -> str:
    """The same for the same file as long as it has not changed."""
    source = f"{info.st_size}-{info.st_mtime_ns}-{os.path.abspath(local)}"
    return hashlib.sha256(os.fsencode(source)).hexdigest()[:16]


async def _forget_others(files: AsyncFiles, directory: str, prefix: str, mine: str, user: str | None) -> None:
    """Remove the parts of former versions of the source, which are useless: a changed source starts again."""
    try:
        found = await files.list(directory, user=user)
    except FileMissing:
        return
    for entry in found:
        if entry.path.startswith(prefix) and entry.path != mine and entry.type == "file":
            await files.remove(posixpath.join(directory, entry.path), user=user)


async def _append(
    files: AsyncFiles, fd: int, part: str, size: int, user: str | None, on_progress: Progress | None
) -> FileInfo:
    """Make the part whole. Raises Conflict when it is not what it should be afterwards."""
    done, etag = await _kept(files, fd, part, size, user)

    async def rest() -> AsyncIterator[bytes]:
        at = done
        while at < size:
            data = await anyio.to_thread.run_sync(os.pread, fd, min(CHUNK, size - at), at)
            if not data:
                raise InvalidArgument("the file was cut while it was uploaded", hint="upload it again")
            yield data
            at += len(data)
            if on_progress is not None:
                on_progress(at, size)

    # Only to the very bytes that were compared: what somebody else has added since would be there twice.
    whole = await files.append(part, rest(), mode=0o600, user=user, if_match=etag)
    if whole.size != size:
        await files.remove(part, user=user)
        raise _others(part)
    return whole


async def _kept(files: AsyncFiles, fd: int, part: str, size: int, user: str | None) -> tuple[int, str]:
    """How much of the file is there already, the same byte for byte, and its etag; what is not is removed."""
    try:
        there = await files.stat(part, follow=False, user=user)
    except FileMissing:
        return 0, ""
    if there.type == "file" and there.size <= size:
        digest = await files.hash(part, user=user)
        if digest == await anyio.to_thread.run_sync(_prefix_hash, fd, there.size):
            return there.size, there.etag
    await files.remove(part, user=user)
    return 0, ""


async def _place(
    files: AsyncFiles, part: str, whole: FileInfo, mode: int, remote: SandboxPath, user: str | None
) -> FileInfo:
    """The part takes its place, unless it is no longer the one that was written here."""
    there = await files.chmod(part, mode, user=user)
    if (there.inode, there.size) != (whole.inode, whole.size):
        raise _others(part)
    placed = await files.rename(part, remote, user=user)
    if (placed.inode, placed.size) != (whole.inode, whole.size):
        raise _others(part)
    return placed


def _others(part: str) -> Conflict:
    return Conflict(f"{part} was changed by somebody else", hint="upload it again, from one place at a time")


def _prefix_hash(fd: int, size: int) -> str:
    digest, at = hashlib.sha256(), 0
    while at < size and (data := os.pread(fd, min(CHUNK, size - at), at)):
        digest.update(data)
        at += len(data)
    return digest.hexdigest()
