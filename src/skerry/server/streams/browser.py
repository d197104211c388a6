"""The browser's end of a stream: bounds what was sent and not acknowledged.

Terminals and processes use one framing. Down, a binary message is `u8 channel | u64 offset | bytes`: channel 1 is
stdout or the screen, 2 is stderr. `{"type": "gap", "channel", "from", "to"}` says which bytes are no longer kept. Up, a
binary message is input, and `{"type": "ack", "channel": 1, "offset": n}` acknowledges what is before that offset.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from skerry.core import InvalidArgument, PermissionDenied, SkerryError, TooLarge, to_problem
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.access.revocation import until_over
from skerry.server.context import Context

UNACKNOWLEDGED = 256 * 1024
"""Bytes in flight; a browser that does not acknowledge gets no more."""
MAX_INPUT = 1 << 20
PIECE = 64 * 1024
"""Bytes passed on at a time, so that it is visible when a program takes any of them."""
MAX_TEXT = 4096
MOST_WAITING = 4 << 20
"""Bytes of input that wait for the program. Acknowledgements behind more than that wait too."""
PATIENCE = 15.0
"""Seconds for which a program may take no input; shorter than keepalive allows for a socket that is not read."""
HEAD = struct.Struct(">BQ")
STDOUT, STDERR = 1, 2
_CODES = {InvalidArgument.code: 4400, TooLarge.code: 4413}
"""The close codes for errors of the browser; all others close with 4503."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a socket is closed."""

    code: int = 1000
    error: SkerryError | None = None
    reason: str = ""


class Stream(Protocol):
    """A program in a sandbox that a browser shows."""

    async def down(self) -> Ended:
        """Show all output, until it ends."""

    async def news(self) -> None:
        """Report other changes."""

    async def take(self, message: bytes | dict[str, Any]) -> None:
        """Handle a message from the browser, in order; returns when the program has it. Raises SkerryError."""


async def admit(context: Context, actor: Actor, subject: Subject, *, view: bool, operation: str) -> Action:
    """The action that the stream needs; audits who controls it, or may not. Raises PermissionDenied."""
    if view:
        return Action.SANDBOX_READ  # the route has checked it
    action = Action.SANDBOX_WRITE
    allowed = context.allows(actor, action, subject)
    outcome = "ok" if allowed else PermissionDenied.code
    await context.audit(actor, action, subject, operation=f"{operation}?mode=control", outcome=outcome)
    if not allowed:
        raise PermissionDenied("you may watch this, not control it", hint="open it with mode=view")
    return action


@contextmanager
def ignore_disconnect() -> Iterator[None]:
    """Ignore a browser that has disconnected."""
    try:
        yield
    except* WebSocketDisconnect:
        pass


class Browser:
    """Takes an accepted socket; `since` is the offset of the next byte of each channel, -1 to begin now."""

    def __init__(self, socket: WebSocket, since: Mapping[int, int]) -> None:
        self._socket = socket
        self._next = dict(since)
        self._sent: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._room = anyio.Event()
        self._waiting: deque[bytes | dict[str, Any]] = deque()
        """What the browser has sent and the program has not taken, in order."""
        self._size = 0
        """Bytes of it."""
        self._came, self._taken = anyio.Event(), anyio.Event()

    async def run(self, stream: Stream, context: Context, actor: Actor, subject: Subject, action: Action) -> None:
        """Show `stream` until it, the browser or the server ends, or the actor may no longer see it."""
        end = Ended()
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                nonlocal end
                code, reason = await until_over(context, actor, subject, (action,))
                end = Ended(code, reason=reason)
                tasks.cancel_scope.cancel()

            async def until_failed(work: Awaitable[None]) -> None:
                nonlocal end
                try:
                    await work
                except SkerryError as error:
                    end = Ended(_CODES.get(error.code, 4503), error)
                    tasks.cancel_scope.cancel()

            async def up() -> None:
                await until_failed(self._read())
                with anyio.move_on_after(PATIENCE):
                    await self._all_taken()  # typed before the browser left
                tasks.cancel_scope.cancel()

            async def take() -> None:
                await until_failed(self._pass_on(stream))

            for task in (watch, up, take, stream.news):
                tasks.start_soon(task)
            end = await stream.down()
            tasks.cancel_scope.cancel()
        await self._close(end)

    async def show(self, channel: int, offset: int, data: bytes) -> None:
        """Send bytes, after the gap before them if there is one; then wait until few enough are in flight."""
        if 0 <= self._next[channel] < offset:
            await self.tell({"type": "gap", "channel": channel, "from": self._next[channel], "to": offset})
        self._acknowledged.setdefault(channel, offset)
        self._sent[channel] = self._next[channel] = offset + len(data)
        await self._socket.send_bytes(HEAD.pack(channel, offset) + data)
        while sum(self._sent[key] - self._acknowledged[key] for key in self._sent) > UNACKNOWLEDGED:
            self._room = anyio.Event()
            await self._room.wait()

    def shown(self, channel: int) -> int:
        """The offset after the last byte that was sent."""
        return max(0, self._next[channel])

    async def tell(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(json.dumps(message))

    async def tell_error(self, error: SkerryError) -> None:
        await self.tell({"type": "error", **{key: value for key, value in to_problem(error).items() if key != "type"}})

    async def _read(self) -> None:
        """Keep what the browser sends for `_pass_on`, until it disconnects. Raises InvalidArgument, TooLarge.

        It keeps reading while the program takes nothing: the program may itself wait for an acknowledgement.
        """
        async for message in self._messages():
            while self._size > MOST_WAITING:
                with anyio.move_on_after(PATIENCE) as scope:
                    await self._taken.wait()
                if scope.cancelled_caught:
                    raise TooLarge(f"the program leaves {self._size} bytes of input unread")
            self._waiting.append(message)
            self._size += _size(message)
            self._came.set()

    async def _pass_on(self, stream: Stream) -> None:
        while True:
            while not self._waiting:
                self._came = anyio.Event()
                await self._came.wait()
            await stream.take(self._waiting[0])
            self._size -= _size(self._waiting.popleft())
            taken, self._taken = self._taken, anyio.Event()
            taken.set()

    async def _all_taken(self) -> None:
        while self._waiting:
            await self._taken.wait()

    async def _messages(self) -> AsyncIterator[bytes | dict[str, Any]]:
        """What the browser sends, except acknowledgements; ends with the socket. Raises InvalidArgument."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data, text = message.get("bytes"), message.get("text")
            if data is not None:
                if len(data) > MAX_INPUT:
                    raise InvalidArgument(f"input comes in pieces of at most {MAX_INPUT} bytes")
                for at in range(0, len(data), PIECE):
                    yield data[at : at + PIECE]
            elif (parsed := _parse(text or "")).get("type") == "ack":
                self._acknowledge(parsed)
            else:
                yield parsed

    def _acknowledge(self, message: dict[str, Any]) -> None:
        offset, channel = message.get("offset"), message.get("channel", STDOUT)
        if type(offset) is not int or type(channel) is not int or channel not in self._sent:
            raise InvalidArgument("an ack has the offset of a byte that was sent")
        self._acknowledged[channel] = max(self._acknowledged[channel], min(offset, self._sent[channel]))
        self._room.set()

    async def _close(self, end: Ended) -> None:
        if self._socket.client_state.name != "CONNECTED" or self._socket.application_state.name != "CONNECTED":
            return
        if end.error is not None:
            await self.tell_error(end.error)
        await self._socket.close(end.code, end.reason or (end.error.code if end.error else ""))


def _size(message: bytes | dict[str, Any]) -> int:
    """The cost of keeping a message; none is free."""
    return 500 + len(message)


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT:
        raise InvalidArgument(f"a message has at most {MAX_TEXT} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument("a text message is a JSON object")
    return found
