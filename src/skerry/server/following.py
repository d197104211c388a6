"""What a long call tells while it works, as lines for its client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request

from skerry.sdk import BuildProgress
from skerry.sdk.building import ProgressCallback
from skerry.server.models.mirror import plain
from skerry.server.sending import NDJSON, SSE, Sender, Streamed, lines, stream_headers, wants

MOST = 1000
"""Lines that wait for a slow client; above it the oldest go, and are counted."""

Work = Callable[[Callable[[str], object] | None, ProgressCallback | None], Awaitable[Any]]
"""Gets `on_log` and `on_progress`; returns the fields of the last line."""


def follows(request: Request) -> bool:
    return wants(request, NDJSON) or wants(request, SSE)


def followed(request: Request, work: Work) -> Streamed:
    """The work's log and progress as it goes on, then its outcome: NDJSON, or an event stream if that is asked for."""
    kind = SSE if wants(request, SSE) else NDJSON

    async def send(sender: Sender) -> None:
        waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def tell(line: dict[str, Any]) -> None:
            if waiting.qsize() >= MOST:
                waiting.get_nowait()
            waiting.put_nowait(line)

        def on_progress(progress: BuildProgress) -> None:
            tell({"type": "progress", **plain(progress)})

        async def put(line: dict[str, Any]) -> None:
            await (sender.event(line["type"], line) if kind == SSE else sender.line(line))

        task = asyncio.ensure_future(work(lambda text: tell({"type": "log", "text": text}), on_progress))
        try:
            await sender.head(200, stream_headers(kind))
            while not task.done():
                next_line = asyncio.ensure_future(waiting.get())
                await asyncio.wait((task, next_line), return_when=asyncio.FIRST_COMPLETED, timeout=15.0)
                if next_line.done():
                    await put(next_line.result())
                else:
                    next_line.cancel()
                    if not task.done():
                        await sender.write(b": still here\n\n" if kind == SSE else b"\n")
            while not waiting.empty():
                await put(waiting.get_nowait())
            await put({"type": "done", **plain(await task)})
        finally:
            task.cancel()
            await asyncio.wait((task,))

    return lines(send, kind)
