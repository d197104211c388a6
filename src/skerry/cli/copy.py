"""The transfers behind `cp` and `edit`: from one place to another."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.cli.terminal.stdio import read_stdin, write
from skerry.core import FileInfo, Transfer

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.cli.terminal.progress import Report


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How `cp` treats directories, and whose rights it uses."""

    merge: bool = False
    replace: bool = False
    exclude: tuple[str, ...] = ()
    resume: bool = False
    user: str | None = None


async def upload(
    box: AsyncSandbox, local: str, remote: str, how: How, *, merge: bool, report: Report | None
) -> Transfer:
    return await box.files.upload(
        local, remote, merge=merge, exclude=how.exclude, resume=how.resume, user=how.user, on_progress=report
    )


async def download(
    box: AsyncSandbox, remote: str, local: str, how: How, *, merge: bool, report: Report | None
) -> Transfer:
    return await box.files.download(remote, local, merge=merge, exclude=how.exclude, user=how.user, on_progress=report)


async def relay(
    source: AsyncSandbox, path: str, target: AsyncSandbox, place: str, how: How, *, merge: bool, report: Report | None
) -> Transfer:
    """Copy from a sandbox to a sandbox, through a temporary directory here."""
    with tempfile.TemporaryDirectory(prefix="skerry-cp-") as directory:
        local = f"{directory}/copy"
        came = await download(source, path, local, how, merge=False, report=report)
        went = await upload(target, local, place, how, merge=merge, report=report)
    return replace(went, skipped=came.skipped, xattrs_lost=came.xattrs_lost + went.xattrs_lost)


async def from_stdin(box: AsyncSandbox, remote: str, how: How) -> Transfer:
    info = await box.files.write(remote, read_stdin(), user=how.user)
    return _one_file(info, info.size)


async def to_stdout(box: AsyncSandbox, remote: str, how: How) -> Transfer:
    info = await box.files.stat(remote, user=how.user)
    count = 0
    async for data in box.files.read_stream(remote, user=how.user):
        await write(1, data)
        count += len(data)
    return _one_file(info, count)


async def put(box: AsyncSandbox, local: Path, remote: str, *, etag: str | None, user: str | None) -> FileInfo:
    """Write an edited file unless it was changed since; None means that it did not exist. Raises Conflict."""
    with local.open("rb") as file:
        return await box.files.write(remote, file, user=user, if_match=etag or "")


def _one_file(info: FileInfo, count: int) -> Transfer:
    return Transfer(info=info, files=1, directories=0, links=0, bytes=count, skipped=(), xattrs_lost=0)
