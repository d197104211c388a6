"""Answers that are made while they are sent: in constant memory, and cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import anyio
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from skerry.core import ConnectionLost, SkerryError, to_problem
from skerry.server.web.models.mirror import to_json
from skerry.server.web.problems import status_of

log = logging.getLogger("skerry.server")
T = TypeVar("T")

STALLED = 120.0
"""Seconds after which the server gives up on a client that takes nothing."""
NDJSON, SSE = "application/x-ndjson", "text/event-stream"


class Gone(ConnectionLost):
    """The client is no longer there."""


class Sender:
    """Sends an answer: its head once, then bytes. Each call waits until the client has room."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Raises Gone if the client has taken nothing for a while."""
        try:
            with anyio.fail_after(STALLED):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise Gone("the client is gone") from None

    async def line(self, content: object) -> None:
        """One line of NDJSON."""
        await self.write(to_json(content) + b"\n")

    async def event(self, kind: str, content: object, id: int | None = None) -> None:
        """One event of an event stream."""
        cursor = b"" if id is None else b"id: %d\n" % id
        await self.write(cursor + b"event: " + kind.encode("ascii") + b"\ndata: " + to_json(content) + b"\n\n")

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class Streamed(Response):
    """An answer that `work` sends. What it raises before the head is an ordinary error.

    After the head, an error cuts the connection, so that nobody takes a part for the whole. If the client disconnects,
    `work` is cancelled. `watch=False` is for work that reads the request's body itself, and so notices a disconnect.
    """

    def __init__(self, work: Callable[[Sender], Awaitable[None]], *, watch: bool = True) -> None:
        super().__init__()
        self._work, self._watch = work, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(send)

        async def work() -> None:
            await self._work(sender)
            await sender.end()

        try:
            if self._watch:
                await attended(receive, work())
            else:
                await work()
        except Gone:
            log.debug("a client disconnected before the end of its answer")
        except SkerryError as error:
            if not sender.begun:
                raise
            # Status and length are already sent: the connection is cut by not ending the answer.
            log.warning("an answer was cut short: %s, %s", error.code, error)


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled if the client disconnects. The request's body must have been read.

    Raises Gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise Gone("the client is gone")
        return task.result()
    finally:
        for one in (gone, task):
            one.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((gone, task))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects first. Raises Gone."""
    return await attended(request.receive, work)


async def body(request: Request) -> AsyncIterator[bytes]:
    """The request's bytes as they come. Raises Gone, and Timeout (from the guard) for a client that goes silent."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Gone("the client is gone")
        if data := message.get("body", b""):
            yield data
        if not message.get("more_body", False):
            return


def lines(work: Callable[[Sender], Awaitable[None]], kind: str = NDJSON) -> Streamed:
    """A stream of lines or events; what `work` raises after the first becomes the last of them."""

    async def send(sender: Sender) -> None:
        try:
            await work(sender)
        except Gone:
            raise
        except SkerryError as error:
            if not sender.begun:
                raise
            problem = to_problem(error) | {"status": status_of(error)}
            if kind == SSE:
                await sender.event("error", problem)
            else:
                await sender.line({"type": "error", "problem": problem})

    return Streamed(send)


def wants(request: Request, kind: str) -> bool:
    """Whether the client asks for this kind of answer by name."""
    return kind in request.headers.get("accept", "")


def stream_headers(kind: str) -> dict[str, str]:
    return {"content-type": kind, "cache-control": "no-store", "x-accel-buffering": "no"}
