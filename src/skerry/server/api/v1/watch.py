"""Changes to files, as an event stream."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, Query, Response

from skerry.core import FileEvent
from skerry.sdk import AsyncWatch
from skerry.server.context import Ctx
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import UserQuery, query_path_here
from skerry.server.web.refusals import READ
from skerry.server.web.responses import SSE, Sender, lines, stream_headers

router = Routes("files", raises=(*READ, "QUOTA_EXCEEDED"))

KEEPALIVE = 15.0
EVENTS = (
    "Events `ready`, then `created`, `modified`, `removed`, `renamed`, `attributes` or `overflow`, each with a"
    " FileEvent as data; if it fails, `error` with a problem comes last."
)


@router.get(SANDBOX + "/watch", **op("Watch a directory for changes", also={SSE: EVENTS}))
async def watch(
    context: Ctx,
    box: Box,
    path: Annotated[str, Depends(query_path_here)],
    recursive: Annotated[bool, Query(description="Watch everything below it too.")] = True,
    user: UserQuery = None,
) -> Response:
    """Reports every change after the event `ready`; `overflow` says that some were lost. Ends when the path goes."""

    async def send(sender: Sender) -> None:
        async with box.files.watch(path, recursive=recursive, user=user) as changes:
            await sender.head(200, stream_headers(SSE))
            await sender.event("ready", {})
            await _follow(sender, changes, context.stopping)

    return lines(send, SSE)


async def _follow(sender: Sender, changes: AsyncWatch, stopping: asyncio.Event) -> None:
    stop = asyncio.ensure_future(stopping.wait())
    coming: asyncio.Future[FileEvent] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(changes))
            done, _ = await asyncio.wait((coming, stop), timeout=KEEPALIVE, return_when=asyncio.FIRST_COMPLETED)
            if stop in done:
                return
            if coming not in done:
                await sender.write(b": still here\n\n")
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            await sender.event(event.kind, event)
    finally:
        stop.cancel()
        if coming is not None:
            coming.cancel()
