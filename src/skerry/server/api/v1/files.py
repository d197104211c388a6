"""The files of a sandbox."""

from __future__ import annotations

from contextlib import aclosing
from itertools import islice
from typing import Annotated

from fastapi import Depends, Query, Request, Response

from skerry.core import FileInfo
from skerry.sdk import Replacement, SearchResult, list_stream
from skerry.server.context import Ctx, Who
from skerry.server.projects.slots import LISTS
from skerry.server.web import large, patterns
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.files import PARTS, append_file, file_answer, refuse_conditions, write_file
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import Answer, UserQuery, exact_query, query_path, query_path_here
from skerry.server.web.refusals import PRECONDITION, RANGE, READ, WRITE
from skerry.server.web.responses import while_there

router = Routes("files", raises=WRITE)

FILES = SANDBOX + "/files"
OCTETS = "application/octet-stream"
At = Annotated[str, Depends(query_path)]
Here = Annotated[str, Depends(query_path_here)]
ModeQuery = Annotated[
    str | None, Query(pattern="^[0-7]{1,4}$", description="Permission bits of a new file, octal.", examples=["644"])
]
Parents = Annotated[bool, Query(description="Make missing directories.")]
Info = mirrored(FileInfo)


class Removed(Answer):
    """How many files, directories and links were removed."""

    removed: int
    """How many."""


class Hash(Answer):
    """Over a file's content, or over a directory's names, types, modes and contents. In hexadecimal."""

    sha256: str
    """The hash, in hexadecimal."""


@router.get(FILES, **op("Read a file", raw=OCTETS, statuses=PARTS, raises=(*READ, PRECONDITION, RANGE)))
async def read(request: Request, box: Box, path: At, user: UserQuery = None) -> Response:
    """The file may have any size. `Range` returns a part (206), `If-None-Match` avoids reading it again (304)."""
    return file_answer(request, box.files, path, user)


@router.put(FILES, **op("Write a file", Info, sends=OCTETS, raises=(*WRITE, PRECONDITION)))
async def write(
    request: Request,
    box: Box,
    path: At,
    mode: ModeQuery = None,
    parents: Parents = True,
    overwrite: Annotated[bool, Query(description="Replace a file that exists.")] = True,
    user: UserQuery = None,
) -> Response:
    """The body may have any size. The file has its old content or all of the new one, never a part.

    `If-Match: "etag"` refuses (412) if the file has been written since, `If-None-Match: *` if it exists.
    """
    bits = None if mode is None else int(mode, 8)
    info = await write_file(request, box.files, path, mode=bits, parents=parents, overwrite=overwrite, user=user)
    return answer(info, headers={"etag": f'"{info.etag}"'})


@router.post(FILES + "/append", **op("Add to the end of a file", Info, sends=OCTETS, raises=(*WRITE, PRECONDITION)))
async def append(
    request: Request, box: Box, path: At, mode: ModeQuery = None, parents: Parents = True, user: UserQuery = None
) -> Response:
    """Append in place; a missing file is made. With `If-Match: "etag"`, a repeated request adds nothing twice (412)."""
    bits = None if mode is None else int(mode, 8)
    info = await append_file(request, box.files, path, mode=bits, parents=parents, user=user)
    return answer(info, headers={"etag": f'"{info.etag}"'})


@router.delete(FILES, **op("Remove a file, a link or a directory", Removed))
async def remove(
    request: Request,
    box: Box,
    path: At,
    recursive: Annotated[bool, Query(description="Remove a directory with everything in it.")] = False,
    user: UserQuery = None,
) -> Response:
    refuse_conditions(request)
    return answer({"removed": await box.files.remove(path, recursive=recursive, user=user)})


@router.get(FILES + "/stat", **op("Get information about a path", Info, raises=READ))
async def stat(
    box: Box, path: At, follow: Annotated[bool, Query(description="Follow links.")] = True, user: UserQuery = None
) -> Response:
    return answer(await box.files.stat(path, follow=follow, user=user))


@router.get(FILES + "/list", **op("List a directory", Info, listed=True, raises=READ))
async def list_directory(
    request: Request,
    context: Ctx,
    who: Who,
    box: Box,
    path: Here,
    depth: Annotated[int, Query(ge=1, le=256, description="How many levels to list.")] = 1,
    limit: Annotated[int, Query(ge=1, le=10_000, description="The most entries to return.")] = 10_000,
    cursor: Annotated[str | None, Query(description="`cursor` of the last answer.")] = None,
    user: UserQuery = None,
) -> Response:
    """Entries are sorted by name, a directory before its contents, down to `depth`. Links are not followed."""
    after = (exact_query(request, "cursor") if cursor is not None else None) or ""

    async def read() -> list[FileInfo]:
        page: list[FileInfo] = []
        reading = aclosing(list_stream(box.files, path, depth=depth, after=after, user=user))
        async with context.slots.taken(LISTS, who), reading as parts:
            async for part in parts:
                some: list[FileInfo] | None = None
                while some is None or some:
                    async with large.sliced(context, who):
                        some = list(islice(part, min(large.ITEMS, limit + 1 - len(page))))
                    page += some
                    if len(page) > limit:
                        return page
        return page

    found = await while_there(request, read())
    page = found[:limit]
    return large.gradual(context, who, {"items": page, "cursor": page[-1].path if len(found) > limit else None})


@router.post(FILES + "/mkdir", **op("Make a directory", Info, status=201))
async def mkdir(box: Box, body: inside.MakeDirectory) -> Response:
    """With `parents`, missing directories above it are made, and one that exists is not an error."""
    return answer(await box.files.mkdir(body.path, mode=body.mode, parents=body.parents, user=body.user), 201)


@router.post(FILES + "/rename", **op("Move a file or directory to another name", Info))
async def rename(box: Box, body: inside.RenameFile) -> Response:
    return answer(await box.files.rename(body.path, body.target, overwrite=body.overwrite, user=body.user))


@router.post(FILES + "/copy", **op("Copy a file or a directory within the sandbox", Info))
async def copy(request: Request, box: Box, body: inside.CopyFile) -> Response:
    copying = box.files.copy(body.path, body.target, overwrite=body.overwrite, parents=body.parents, user=body.user)
    return answer(await while_there(request, copying))


@router.post(FILES + "/chmod", **op("Set permission bits", Info))
async def chmod(box: Box, body: inside.ChangeMode) -> Response:
    return answer(await box.files.chmod(body.path, body.mode, user=body.user))


@router.post(FILES + "/chown", **op("Set the owner or the group", Info))
async def chown(box: Box, body: inside.ChangeOwner) -> Response:
    return answer(await box.files.chown(body.path, owner=body.owner, group=body.group, user=body.user))


@router.post(FILES + "/symlink", **op("Make a link", Info, status=201))
async def symlink(box: Box, body: inside.MakeLink) -> Response:
    return answer(await box.files.symlink(body.path, body.target, user=body.user), 201)


@router.get(FILES + "/glob", **op("Find files by a pattern of names", Info, listed=True, raises=(*READ, "TOO_LARGE")))
async def glob(
    request: Request,
    context: Ctx,
    who: Who,
    box: Box,
    pattern: Annotated[str, Query(max_length=4096, description="The pattern.", examples=["**/*.py"])],
    path: Here,
    user: UserQuery = None,
) -> Response:
    """Patterns have `*`, `?`, `[…]`, `{a,b}` and `**`. The result is sorted."""
    exact = exact_query(request, "pattern") or pattern
    return patterns.glob(context, who, box, exact, path, user)


@router.post(FILES + "/search", **op("Find lines in files", mirrored(SearchResult), raises=(*READ, "TOO_LARGE")))
async def search(context: Ctx, who: Who, box: Box, body: inside.SearchFiles) -> Response:
    """Find lines that match a Python regular expression, or a text with `regex` false. Links are not followed."""
    return patterns.search(context, who, box, body)


@router.post(FILES + "/replace", **op("Replace text in files", mirrored(Replacement), raises=(*WRITE, "TOO_LARGE")))
async def replace(context: Ctx, who: Who, box: Box, body: inside.ReplaceText) -> Response:
    """Replace in a file, or in every file that a pattern finds. Each is written in one step, unless it has changed."""
    return patterns.replace(context, who, box, body)


@router.get(FILES + "/hash", **op("Get the SHA-256 of a file or a directory", Hash, raises=READ))
async def hash(request: Request, box: Box, path: At, user: UserQuery = None) -> Response:
    return answer({"sha256": await while_there(request, box.files.hash(path, user=user))})
