"""Sends files as HTTP answers and stores HTTP bodies as files: ranges, conditions, any size in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from fastapi import Request

from skerry.core import (
    CONTENT_TYPE,
    Conflict,
    FileInfo,
    FileMissing,
    InvalidArgument,
    IsADirectory,
    NotAFile,
    to_problem,
)
from skerry.sdk import AsyncFiles, read_stream
from skerry.server.web.models.mirror import to_json
from skerry.server.web.problems import PreconditionFailed
from skerry.server.web.ranges import Part, RangeRefused, matches, parse_range, quoted, tags
from skerry.server.web.responses import Sender, Streamed, body

PARTS = {206: "The part that `Range` asks for.", 304: "The file still has the etag of `If-None-Match`."}
"""The other successes of reading a file."""
TRIES = 5
"""How often to retry with a file that changes between a look at it and its opening."""


def file_answer(request: Request, files: AsyncFiles, path: str, user: str | None) -> Streamed:
    """The file, or the requested part of it. Errors are those of any other route."""
    return Streamed(lambda sender: _send(sender, request, files, path, user))


async def _send(sender: Sender, request: Request, files: AsyncFiles, path: str, user: str | None) -> None:
    info = await files.stat(path, user=user)
    for _ in range(TRIES):
        _check_file(info)
        _check_match(request, info)
        known = request.headers.get("if-none-match")
        if known is not None and matches(known, info.etag, weak=True):
            await sender.head(304, {"etag": quoted(info.etag)})
            return
        try:
            part = _part(request, info)
        except RangeRefused as error:
            await _refuse_range(sender, error, info.size)
            return
        if request.method == "HEAD":
            await sender.head(*_head(info, part, path))
            return
        offset, length = (0, info.size) if part is None else (part.offset, part.length)
        async with read_stream(files, path, offset=offset, length=length, user=user) as (found, content):
            if found.etag == info.etag:
                await sender.head(*_head(info, part, path))
                await _pass(sender, content, length, path)
                return
        info = found
    raise Conflict(f"{path} is being written all the time", hint="read it when nobody writes to it, or copy it first")


async def _pass(sender: Sender, content: AsyncIterator[bytes], length: int, path: str) -> None:
    """Send exactly as many bytes as the head says. Raises Conflict, which cuts the answer."""
    left = length
    async for piece in content:
        left -= len(piece)
        if left < 0:
            break
        await sender.write(piece)
    if left:
        raise Conflict(f"{path} has another size than when it was opened", hint="read it again")


def _check_file(info: FileInfo) -> None:
    if info.is_dir:
        raise IsADirectory(f"{info.path} is a directory", hint="/directories returns it as a tar stream")
    if info.type != "file":
        raise NotAFile(f"{info.path} is a {info.type}")


def _check_match(request: Request, info: FileInfo) -> None:
    if not matches(request.headers.get("if-match", "*"), info.etag):
        raise PreconditionFailed(f"{info.path} has another etag: {info.etag}")


def _part(request: Request, info: FileInfo) -> Part | None:
    if request.method == "HEAD":
        return None  # only GET has ranges
    if not matches(request.headers.get("if-range", "*"), info.etag):
        return None
    return parse_range(request.headers.get("range"), info.size)


def _head(info: FileInfo, part: Part | None, path: str) -> tuple[int, dict[str, str]]:
    name = quote(path.rstrip("/").rpartition("/")[2].encode("utf-8", "surrogateescape"), safe="")
    headers = {
        "content-type": "application/octet-stream",
        # A browser never shows a sandbox's file as a page of this server's origin.
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-length": str(info.size if part is None else part.length),
        "accept-ranges": "bytes",
        "etag": quoted(info.etag),
        "last-modified": formatdate(min(max(info.mtime, 0), 2**33), usegmt=True),
    }
    if part is None:
        return 200, headers
    return 206, {**headers, "content-range": f"bytes {part.offset}-{part.offset + part.length - 1}/{info.size}"}


async def _refuse_range(sender: Sender, error: RangeRefused, size: int) -> None:
    problem: dict[str, Any] = to_problem(error) | {"status": 416}
    await sender.head(416, {"content-type": CONTENT_TYPE, "content-range": f"bytes */{size}"})
    await sender.write(to_json(problem))


async def write_file(
    request: Request,
    files: AsyncFiles,
    path: str,
    *,
    mode: int | None = None,
    parents: bool = True,
    overwrite: bool = True,
    user: str | None = None,
) -> FileInfo:
    """The request's body becomes the file, in one step when all of it has arrived. Raises PreconditionFailed."""
    wanted = await _wanted(request, files, path, user)
    with _precondition(wanted):
        return await files.write(
            path, body(request), mode=mode, parents=parents, overwrite=overwrite, if_match=wanted, user=user
        )


async def append_file(
    request: Request, files: AsyncFiles, path: str, *, mode: int | None, parents: bool, user: str | None
) -> FileInfo:
    """The request's body is appended to the file as it arrives. Raises PreconditionFailed."""
    wanted = await _wanted(request, files, path, user)
    with _precondition(wanted):
        return await files.append(path, body(request), mode=mode, parents=parents, if_match=wanted, user=user)


def refuse_conditions(request: Request) -> None:
    """Raises InvalidArgument if a client relies on a condition that is not checked."""
    for name in ("if-match", "if-none-match", "if-unmodified-since"):
        if name in request.headers:
            raise InvalidArgument(f"this request takes no conditions: {name} cannot be honoured")


@contextmanager
def _precondition(wanted: str | None) -> Iterator[None]:
    try:
        yield
    except Conflict as error:
        if wanted is None:
            raise
        raise PreconditionFailed(error.message, hint="read the file again") from error


async def _wanted(request: Request, files: AsyncFiles, path: str, user: str | None) -> str | None:
    """The etag that the file must have; empty: the file must not exist."""
    if "content-range" in request.headers:
        raise InvalidArgument(
            "a file is written as a whole: Content-Range cannot be honoured", hint="use /files/append"
        )
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_match is None and "if-unmodified-since" in request.headers:
        raise InvalidArgument(
            "a time is too coarse to tell whether somebody has written", hint="use If-Match with an etag"
        )
    if if_none_match is not None:
        if if_match is not None or tags(if_none_match) is not None:
            raise InvalidArgument("a file is written with If-Match, or with `If-None-Match: *`")
        return ""
    if if_match is None:
        return None
    found = tags(if_match)
    if found is None:
        try:
            return (await files.stat(path, user=user)).etag
        except FileMissing as error:
            raise PreconditionFailed(error.message) from error
    if len(found) > 1:
        raise InvalidArgument("If-Match takes one etag here")
    if not found or not found[0]:
        raise PreconditionFailed("no file has that etag", hint="the quotes belong to it, a W/ does not")
    return found[0]
