"""`/v1/sandboxes/{sandbox}/wire`: a client's own wire frames to an agent, each opener checked against the table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio
from starlette.websockets import WebSocket

from skerry.core import ConnectionLost, InvalidArgument, QuotaExceeded, SandboxNotFound, limits
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action, action_of
from skerry.server.access.revocation import until_over
from skerry.server.context import About, Context, Ctx, Sandbox, Who
from skerry.server.projects.sandboxes import seconds_left
from skerry.server.streams.agent_connection import Connection, open_agent
from skerry.server.streams.audit import Trail
from skerry.server.streams.browser import ignore_disconnect
from skerry.server.streams.gate import Gate, Splice
from skerry.server.web.guard import Routes
from skerry.wire import Frame, FrameError, Hello, Type, encode_frame

router = Routes("streams")
SUBPROTOCOL = "skerry.wire.1"
BROKEN_PROTOCOL = 1002
AGENT_GONE = 4503
REMEMBER = 1.0
"""How long a permission decision is cached, in seconds."""


@contextmanager
def _place(context: Context, actor: Actor, sandbox_id: str) -> Iterator[None]:
    """Raises QuotaExceeded."""
    who = f"{actor.id} {sandbox_id}"
    if not context.wires.enter(who):
        most = context.wires.most
        raise QuotaExceeded(f"you already have {most} connections to this sandbox", hint="close some, or share one")
    try:
        yield
    finally:
        context.wires.leave(who)


class Quick(Protocol):
    """What the server's WebSockets have besides ASGI. See `server/run/uvicorn_protocol.py: QuickSockets`."""

    tap: Callable[[bytes], bool] | None

    @property
    def writes(self) -> bool: ...
    def send_now(self, data: bytes) -> None: ...


class Rights:
    """What the actor may do with this sandbox now; reads the table repeatedly, since a right may be revoked."""

    def __init__(self, context: Context, actor: Actor, subject: Subject) -> None:
        self._context, self._actor, self._subject = context, actor, subject
        self._known: dict[Action, tuple[float, bool]] = {}

    def has(self, action: Action) -> bool:
        now = time.monotonic()
        until, allowed = self._known.get(action, (0.0, False))
        if now >= until:
            allowed = self._context.allows(self._actor, action, self._subject)
            self._known[action] = (now + REMEMBER, allowed)
        return allowed


@router.websocket("/v1/sandboxes/{sandbox}/wire")
async def wire(socket: WebSocket, context: Ctx, actor: Who, subject: About, sandbox: Sandbox) -> None:
    if SUBPROTOCOL not in socket.scope["subprotocols"]:
        raise InvalidArgument(f"this needs the WebSocket subprotocol {SUBPROTOCOL}")
    with _place(context, actor, sandbox.id):
        async with open_agent(context.provider_of(sandbox), sandbox.id) as (hello, agent):
            await socket.accept(subprotocol=SUBPROTOCOL)
            trail = Trail(context, actor, subject)
            with ignore_disconnect():
                async with trail.kept():
                    code, reason = await _Gateway(context, actor, subject, socket, agent, trail).run(hello)
                if code:
                    await socket.close(code, reason)


class _Gateway:
    """The link between one socket and one agent. The first one to end also ends the other."""

    def __init__(
        self, context: Context, actor: Actor, subject: Subject, socket: WebSocket, agent: Connection, trail: Trail
    ) -> None:
        self._context, self._actor, self._subject = context, actor, subject
        self._socket, self._agent, self._trail = socket, agent, trail
        assert subject.sandbox_id is not None
        self._sandbox_id = subject.sandbox_id
        self._rights = Rights(context, actor, subject)
        self._gate = Gate(self._allows, longest=limits().max_lifetime)
        self._splice = Splice()
        # Keeps the order of the splice: otherwise a send could overtake another that waits for room.
        self._sending = asyncio.Lock()
        self._used = {Action.SANDBOX_READ}
        """What was allowed on this connection: streams that it opened may still exist."""
        self._end = (0, "")
        self._quick: Quick | None = socket.scope["extensions"].get("skerry.quick")
        self._waits = False
        """Whether `_up` waits for the next message, and has passed on those before."""
        self._left: float | None = None
        """Seconds that the sandbox still has to live, while a message that may change that is checked."""

    async def run(self, hello: Hello) -> tuple[int, str]:
        """The code and reason to close the socket with; 0: the client has closed it."""
        await self._send(encode_frame(0, Type.HELLO, hello.encode()))
        with self._tapped():
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    self._end = await until_over(self._context, self._actor, self._subject, self._used)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                tasks.start_soon(self._down, tasks.cancel_scope)
                await self._up(tasks.cancel_scope)
        return self._end

    @contextmanager
    def _tapped(self) -> Iterator[None]:
        if self._quick is None:
            yield
            return
        self._quick.tap, self._agent.tap = self._up_now, self._down_now
        try:
            yield
        finally:
            self._quick.tap = self._agent.tap = None

    def _allows(self, frame: Frame) -> bool:
        action = action_of(frame, self._left)
        if action is None:
            return False
        allowed = self._rights.has(action)
        if allowed:
            self._used.add(action)
            if frame.type == Type.START:
                self._context.metrics.commands["wire"] += 1
        if not allowed or action is not Action.SANDBOX_READ:
            outcome = "ok" if allowed else "PERMISSION_DENIED"
            self._trail.add(action, f"WIRE {Type(frame.type).name}", outcome)
        return allowed

    async def _up(self, scope: anyio.CancelScope) -> None:
        """From the client to the agent."""
        try:
            while True:
                self._waits = True
                message = await self._socket.receive()
                self._waits = False
                if message["type"] == "websocket.disconnect":
                    break
                data = message.get("bytes")
                if data is None:
                    raise FrameError("a text message instead of frames")
                if not self._rights.has(Action.SANDBOX_DESTROY) and self._gate.announces(Type.LIFE, data):
                    provider = self._context.sandboxes.provider_of(self._sandbox_id)
                    self._left = seconds_left(await provider.get(self._sandbox_id))
                passage = self._gate.feed(data)
                self._left = None
                if passage.answer:
                    async with self._sending:
                        if answer := self._splice.answer(passage.answer):
                            await self._send(answer)
                if passage.opened:
                    await self._trail.room()
                if passage.forward:
                    await self._agent.send(passage.forward)
        except FrameError as error:
            self._end = (BROKEN_PROTOCOL, str(error)[:100])
        except (ConnectionLost, SandboxNotFound) as error:
            self._end = (AGENT_GONE, error.message[:100])
        scope.cancel()

    async def _down(self, scope: anyio.CancelScope) -> None:
        """From the agent to the client."""
        try:
            while data := await self._agent.receive():
                async with self._sending:
                    await self._send(self._splice.feed(data))
            self._end = (AGENT_GONE, "the agent closed the connection")
        except (FrameError, ConnectionLost) as error:
            self._end = (AGENT_GONE, str(error)[:100])
        scope.cancel()

    # A key and its echo: straight from one socket to the other, where nothing is before them and nothing to be checked.

    def _up_now(self, data: bytes) -> bool:
        passed = self._waits and self._gate.passes(data) and self._agent.send_now(data)
        if passed:
            self._context.metrics.bytes["received"] += len(data)
        return passed

    def _down_now(self, data: bytes) -> bool:
        assert self._quick is not None
        if self._sending.locked() or not self._quick.writes:
            return False
        self._quick.send_now(self._splice.feed(data))
        self._context.metrics.bytes["sent"] += len(data)
        return True

    async def _send(self, data: bytes) -> None:
        await self._socket.send({"type": "websocket.send", "bytes": data})
