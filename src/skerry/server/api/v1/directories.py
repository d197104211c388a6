"""Whole directories as tar streams, both ways."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query, Request, Response

from skerry.core import Transfer
from skerry.sdk import pack_stream, unpack_stream
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import UserQuery, query_path
from skerry.server.web.refusals import READ, WRITE
from skerry.server.web.responses import Sender, Streamed, body
from skerry.trees import TarDecoder, tar_stream, tree_stream

router = Routes("directories")

TAR = "application/x-tar"
DIRECTORIES = SANDBOX + "/directories"
At = Annotated[str, Depends(query_path)]


@router.get(DIRECTORIES, **op("Get a directory as a tar stream", raw=TAR, raises=READ))
async def download(
    box: Box,
    path: At,
    exclude: Annotated[list[str] | None, Query(max_length=256, description="Names to leave out.")] = None,
    user: UserQuery = None,
) -> Response:
    """The stream keeps modes, times, links and hard links. Of a file it holds that file. It omits pipes and sockets."""
    name = path.rstrip("/").rpartition("/")[2].encode("utf-8", "surrogateescape") or b"root"

    async def send(sender: Sender) -> None:
        async with pack_stream(box.files, path, exclude=exclude or (), user=user) as (_, records):
            disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}.tar"
            await sender.head(200, {"content-type": TAR, "content-disposition": disposition})
            async for part in tar_stream(records, name):
                await sender.write(part)

    return Streamed(send)


@router.put(
    DIRECTORIES, **op("Make a directory from a tar stream", mirrored(Transfer), sends=TAR, raises=(*WRITE, "TOO_LARGE"))
)
async def upload(
    request: Request,
    box: Box,
    path: At,
    merge: Annotated[
        bool, Query(description="Keep what the directory already holds; else replace it as a whole.")
    ] = False,
    user: UserQuery = None,
) -> Response:
    """The directory appears when all of it has arrived, or not at all. The stream must not be compressed.

    Absolute names, names with `..`, devices, pipes and invalid links are refused.
    """
    decoder = TarDecoder()
    done = await unpack_stream(
        box.files, path, tree_stream(body(request), decoder), decoder.tally, merge=merge, user=user
    )
    return answer(done)
