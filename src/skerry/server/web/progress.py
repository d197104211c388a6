"""Progress and log of a long call, as lines for its client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request

from skerry.sdk import BuildProgress, ProgressCallback
from skerry.server.web.models.mirror import plain
from skerry.server.web.responses import NDJSON, SSE, Sender, Streamed, lines, stream_headers, wants

KEEPALIVE = 15.0
MOST = 1 << 20
"""Characters that wait for a slow client; above that the oldest lines are dropped, and the client learns how many."""

Work = Callable[[Callable[[str], object] | None, ProgressCallback | None], Awaitable[Any]]
"""Gets `on_log` and `on_progress`; returns the fields of the last line."""


def follows(request: Request) -> bool:
    return wants(request, NDJSON) or wants(request, SSE)


def followed(request: Request, work: Work) -> Streamed:
    """The work's log and progress as they come, then its outcome: NDJSON, or an event stream if asked for."""
    kind = SSE if wants(request, SSE) else NDJSON

    async def send(sender: Sender) -> None:
        waiting = _Waiting()

        async def put(line: dict[str, Any]) -> None:
            await (sender.event(line["type"], line) if kind == SSE else sender.line(line))

        async def put_all() -> None:
            while (line := waiting.take()) is not None:
                await put(line)

        task = asyncio.ensure_future(work(waiting.log, waiting.progress))
        try:
            await sender.head(200, stream_headers(kind))
            while not task.done():
                news = asyncio.ensure_future(waiting.news.wait())
                await asyncio.wait((task, news), return_when=asyncio.FIRST_COMPLETED, timeout=KEEPALIVE)
                news.cancel()
                if waiting.news.is_set():
                    await put_all()
                elif not task.done():
                    await sender.write(b": still here\n\n" if kind == SSE else b"\n")
            await put_all()
            await put({"type": "done", **plain(await task)})
        finally:
            task.cancel()
            await asyncio.wait((task,))

    return lines(send, kind)


class _Waiting:
    """Lines that the client has not taken yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Whether there is one."""
        self._lines: deque[tuple[int, dict[str, Any]]] = deque()
        self._size = self._dropped = 0

    def log(self, text: str) -> None:
        self._add(len(text), {"type": "log", "text": text})

    def progress(self, progress: BuildProgress) -> None:
        self._add(0, {"type": "progress", **plain(progress)})

    def _add(self, size: int, line: dict[str, Any]) -> None:
        self._lines.append((size + 500, line))
        self._size += size + 500
        while self._size > MOST:
            self._size -= self._lines.popleft()[0]
            self._dropped += 1
        self.news.set()

    def take(self) -> dict[str, Any] | None:
        """The next line; None: there is none at the moment."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return {"type": "gap", "lines": dropped}
        if not self._lines:
            self.news.clear()
            return None
        size, line = self._lines.popleft()
        self._size -= size
        return line
