"""The way from a sandbox object to its agent: dials, dials again, and says why a connection was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, NoReturn, TypedDict, TypeVar, Unpack
from weakref import WeakKeyDictionary

import anyio

from skerry.core.errors import ConnectionLost, Corrupted, SandboxFailed, SandboxNotFound, SkerryError
from skerry.core.models import State
from skerry.core.provider import Provider
from skerry.sdk.log import log
from skerry.sdk.session import Session
from skerry.sdk.stream import Reply, Stream
from skerry.wire import Message, Notice

M = TypeVar("M", bound=Message)

CONTROL_GUARD = 30.0
"""How long an agent may take to answer a request that needs no work."""
FILE_GUARD = 120.0
"""How long a file request may be without any progress."""

LinkEvent = Literal["connected", "disconnected", "reconnecting", "error"]


class StreamOptions(TypedDict, total=False):
    """What `Session.open` takes beside the message."""

    channels: tuple[int, ...]
    window: int
    input: bool
    greets: bool
    offsets: tuple[int, ...]
    jumps: bool
    max_replies: int
    max_reply_bytes: int
    on_notice: Callable[[Notice], None] | None


class Link:
    """One sandbox's sessions, one for each event loop that uses it."""

    def __init__(
        self,
        provider: Provider,
        sandbox_id: str,
        *,
        ping_after: float = 15.0,
        lost_after: float = 30.0,
        on_event: Callable[[LinkEvent, dict[str, str]], None] | None = None,
    ) -> None:
        self.provider = provider
        self.sandbox_id = sandbox_id
        self.destroyed = False
        self._ping_after, self._lost_after = ping_after, lost_after
        self._on_event = on_event
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, Session] = WeakKeyDictionary()
        # Each keeps the tasks of one loop from dialling at the same time.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Lock] = WeakKeyDictionary()
        self._lost = False

    def open(self, message: Message, **options: Unpack[StreamOptions]) -> Opening:
        """`async with link.open(message) as stream`: a stream that is closed on the way out.

        ConnectionLost becomes SandboxNotFound or SandboxFailed where the provider says so.
        """
        return Opening(self, message, options)

    async def request(self, message: Message, kind: type[M], *, guard: float = CONTROL_GUARD) -> M:
        """Send a request that has one answer, and return it."""
        async with self.open(message) as stream:
            item = await stream.next(guard)
            if not isinstance(item, Reply) or not item.final:
                raise stream.corrupt("an answer that is not the last where only one is due")
            return stream.decode(kind, item.payload)

    async def session(self) -> Session:
        """The session of this event loop, dialled if there is none that lives."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is not None and session.error is None:
            if session.crowded:
                await session.room()
            return session
        lock = self._locks.setdefault(loop, anyio.Lock())
        async with lock:
            session = self._sessions.get(loop)
            if session is None or session.error is not None:
                session = self._sessions[loop] = await self._dial()
        return session

    async def _dial(self) -> Session:
        if self.destroyed:
            raise SandboxNotFound(f"sandbox {self.sandbox_id} was destroyed")
        if self._lost:
            self._emit("reconnecting")
        for loop, session in list(self._sessions.items()):
            if loop.is_closed():
                session.discard()
                del self._sessions[loop]
        started = time.perf_counter()
        channel = await self.provider.dial(self.sandbox_id)
        session = Session(channel, ping_after=self._ping_after, lost_after=self._lost_after, on_end=self._ended)
        self._lost = False
        log.debug("connected", extra=self.fields("dial", started))
        self._emit("connected")
        return session

    def _ended(self, error: SkerryError) -> None:
        if self.destroyed:
            return
        self._lost = True
        if isinstance(error, Corrupted):
            log.error("connection ended: %s", error, extra=self.fields("dial"))
            self._emit("error", {"code": error.code, "message": error.message})
        self._emit("disconnected", {"reason": error.message})

    def _emit(self, event: LinkEvent, data: dict[str, str] | None = None) -> None:
        if self._on_event is not None:
            self._on_event(event, data or {})

    async def raise_lost(self, lost: ConnectionLost) -> NoReturn:
        """Raise what the provider knows about a lost connection: `lost` itself if the sandbox runs."""
        better = await self._explain(lost)
        if better is lost:
            raise lost
        raise better from lost

    async def _explain(self, lost: ConnectionLost) -> SkerryError:
        try:
            info = await self.provider.get(self.sandbox_id)
        except SandboxNotFound as error:
            return SandboxNotFound(f"sandbox {self.sandbox_id} is gone: {error}")
        except SkerryError:
            return lost
        if info.state in (State.DESTROYED, State.STOPPING):
            return SandboxNotFound(f"sandbox {self.sandbox_id} has ended")
        if info.state is State.FAILED:
            self._emit("error", {"code": SandboxFailed.code, "message": info.reason or "failed"})
            return SandboxFailed(f"sandbox {self.sandbox_id} failed: {info.reason or 'no reason is known'}")
        return lost

    async def close(self) -> None:
        """Close every session; the sandbox itself goes on."""
        loop = asyncio.get_running_loop()
        for owner, session in list(self._sessions.items()):
            if owner is loop:
                await session.aclose()
            else:
                session.discard()
        self._sessions.clear()

    def fields(self, op: str, started: float | None = None) -> dict[str, object]:
        """The extra fields of a log record; `started` is a `time.perf_counter()`."""
        extra: dict[str, object] = {"sandbox_id": self.sandbox_id, "provider": self.provider.name, "op": op}
        if started is not None:
            extra["duration"] = time.perf_counter() - started
        return extra


class Opening:
    """See `Link.open`."""

    __slots__ = ("_began", "_link", "_message", "_options", "_stream")

    def __init__(self, link: Link, message: Message, options: StreamOptions) -> None:
        self._link, self._message, self._options = link, message, options
        self._began = time.perf_counter()
        self._stream: Stream | None = None

    async def __aenter__(self) -> Stream:
        session = await self._link.session()
        try:
            self._stream = session.open(self._message, **self._options)
        except ConnectionLost as lost:
            await self._link.raise_lost(lost)
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        if log.isEnabledFor(logging.DEBUG):
            name = type(self._message).__name__.lower()
            how = "done" if error is None else getattr(error, "code", type(error).__name__)
            log.debug("%s: %s", name, how, extra=self._link.fields(name, self._began))
        if isinstance(error, ConnectionLost):
            await self._link.raise_lost(error)
