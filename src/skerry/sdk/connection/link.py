"""The way from a sandbox object to its agent: dials, dials again, and says why a connection was lost."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import anyio

from skerry.core import (
    Channel,
    ConnectionLost,
    Corrupted,
    ErrorType,
    ExecResult,
    OutOfMemory,
    Pausable,
    Provider,
    SandboxFailed,
    SandboxInfo,
    SandboxNotFound,
    SandboxStopped,
    SkerryError,
    State,
    Stoppable,
)
from skerry.sdk.connection.session import Session
from skerry.sdk.connection.stream import Reply, Stream
from skerry.sdk.log import log
from skerry.wire import Life, LifeReply, Message, Notice, Opener, Start

M = TypeVar("M", bound=Message)

CHECK_GUARD = 10.0
"""How long a check of a sandbox's health may take."""
CONTROL_GUARD = 30.0
"""How long an agent may take to answer a request that needs no work."""
FILE_GUARD = 120.0
"""How long a file request may be without any progress."""
STARTS = 3
"""How often one call starts a sandbox that others keep stopping."""
MAX_COMMAND = 1000
"""Characters of a command in an event."""

LinkEvent = Literal["connected", "disconnected", "reconnecting", "error"]


class Link:
    """One sandbox's sessions, one for each event loop that uses it."""

    def __init__(
        self,
        provider: Provider,
        sandbox_id: str,
        *,
        auto_start: bool = True,
        ping_after: float = 15.0,
        lost_after: float = 30.0,
        on_event: Callable[[LinkEvent, dict[str, str]], None] | None = None,
    ) -> None:
        self.provider = provider
        self.sandbox_id = sandbox_id
        self.auto_start = auto_start
        """Whether a call starts a sandbox that is stopped and resumes one that is paused."""
        self.destroyed = False
        self.leased = False
        """Whether it ends with a connection of ours."""
        self.paused = False
        """Whether it was paused here: its agent does not answer."""
        self.on_start: Callable[[], Awaitable[None]] | None = None
        """Called when a call has started the sandbox, before that call continues."""
        self._ping_after, self._lost_after = ping_after, lost_after
        self._on_event = on_event
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, Session] = WeakKeyDictionary()
        # Each keeps the tasks of one loop from dialling at the same time.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Lock] = WeakKeyDictionary()
        self._lost = False
        self._told = False
        """Whether an `error` was reported since the last connection: many calls may fail for one reason."""

    def open(self, message: Opener, *, on_notice: Callable[[Notice], None] | None = None) -> Opening:
        """`async with link.open(message) as stream`: a stream that is closed on the way out. See `Session.open`.

        ConnectionLost becomes SandboxNotFound, SandboxStopped or SandboxFailed where the provider says so.
        """
        return Opening(self, message, on_notice)

    async def request(self, message: Opener, kind: type[M], *, guard: float = CONTROL_GUARD) -> M:
        """Send a request that has one answer, and return it."""
        async with self.open(message) as stream:
            item = await stream.next(guard)
            if not isinstance(item, Reply) or not item.final:
                raise stream.corrupt("an answer that is not the last where only one is due")
            return stream.decode(kind, item.payload)

    async def session(self, *, start: bool = True) -> Session:
        """The session of this event loop, dialled if there is none that lives.

        A sandbox that does not run is started or resumed, unless `start` or `auto_start` is False: SandboxStopped.
        """
        if self.paused:
            await self._wake(start)
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is not None and session.error is None:
            if session.crowded:
                await session.room()
            return session
        lock = self._locks.setdefault(loop, anyio.Lock())
        restarted = False
        async with lock:
            session = self._sessions.get(loop)
            if session is None or session.error is not None:
                session, restarted = await self._dial(start)
                self._sessions[loop] = session
        if restarted and self.on_start is not None:
            await self.on_start()
        return session

    def sessions(self) -> list[Session]:
        """All open sessions."""
        return list(self._sessions.values())

    async def drop(self, sessions: list[Session]) -> None:
        """Close sessions whose agent has ended, even if no call has noticed that yet."""
        for loop, session in list(self._sessions.items()):
            if session in sessions:
                del self._sessions[loop]
                await _close(session)

    async def start(self, provider: Stoppable) -> SandboxInfo:
        """Start the sandbox, or resume it."""
        info = await provider.start(self.sandbox_id)
        self.paused = False
        await self.renew_lease()
        return info

    async def renew_lease(self) -> None:
        """Renew the lease: a sandbox that was started again knows nothing of it.

        If the process dies before this, the sandbox is left to the next sweep.
        """
        if self.leased:
            await self.request(Life(lease=1), LifeReply)

    async def _wake(self, start: bool) -> None:
        info = await self.provider.get(self.sandbox_id)
        if info.state is State.PAUSED:
            if not (start and self.auto_start and isinstance(self.provider, Pausable)):
                raise SandboxStopped(f"sandbox {self.sandbox_id} is paused", hint="resume it")
            await self.provider.resume(self.sandbox_id)
        self.paused = False

    async def _is_paused(self) -> bool:
        """For a session whose agent is silent: whether that is because somebody has frozen it."""
        try:
            return (await self.provider.get(self.sandbox_id)).state is State.PAUSED
        except SkerryError:
            return False

    async def _channel(self, start: bool) -> tuple[Channel, bool]:
        """A channel to the agent, and whether the sandbox was started for it."""
        for attempt in range(STARTS + 1):
            try:
                return await self.provider.dial(self.sandbox_id), attempt > 0
            except SandboxStopped:
                if attempt == STARTS or not (start and self.auto_start and isinstance(self.provider, Stoppable)):
                    raise
                began = time.perf_counter()
                await self.provider.start(self.sandbox_id)
                log.info("started %s", self.sandbox_id, extra=self.fields("start", began))
        raise AssertionError("the last attempt returns or raises")

    async def _dial(self, start: bool) -> tuple[Session, bool]:
        """A session, and whether the sandbox was started for it."""
        if self.destroyed:
            raise SandboxNotFound(f"sandbox {self.sandbox_id} was destroyed")
        if self._lost:
            self._emit("reconnecting")
        for loop, session in list(self._sessions.items()):
            if loop.is_closed():
                session.discard()
                del self._sessions[loop]
        started = time.perf_counter()
        channel, restarted = await self._channel(start)
        session = Session(
            channel,
            ping_after=self._ping_after,
            lost_after=self._lost_after,
            on_end=self._ended,
            excused=self._is_paused,
        )
        if restarted and self.leased:
            try:
                await session.open(Life(lease=1)).next(CONTROL_GUARD)
            except BaseException:
                session.end(ConnectionLost("the connection was given up"))
                raise
        self._lost = self._told = False
        log.debug("connected", extra=self.fields("dial", started))
        self._emit("connected")
        return session, restarted

    def _ended(self, error: SkerryError) -> None:
        if self.destroyed:
            return
        self._lost = True
        if isinstance(error, Corrupted):
            log.error("connection ended: %s", error, extra=self.fields("dial"))
            self._tell("corruption", error.code, error.message)
            self._told = True
        self._emit("disconnected", {"reason": error.message})

    def _emit(self, event: LinkEvent, data: dict[str, str] | None = None) -> None:
        if self._on_event is not None:
            self._on_event(event, data or {})

    def _tell(self, type: ErrorType, code: str, reason: str, running: str | None = None) -> None:
        data = {"type": type, "code": code, "reason": reason}
        self._emit("error", data | ({"running": running} if running else {}))

    def _tell_lost(self, code: str, reason: str, running: str | None) -> None:
        if not self._told:
            self._told = True
            self._tell("connection-lost", code, reason, running)

    def ran(self, result: ExecResult) -> ExecResult:
        """Report a command that was killed for lack of memory. Returns the result unchanged."""
        if result.oom_killed:
            self._tell("out-of-memory", OutOfMemory.code, "killed: out of memory", result.command)
        return result

    async def raise_lost(self, lost: ConnectionLost, running: str | None = None) -> NoReturn:
        """Raise what the provider knows about a lost connection: `lost` itself if the sandbox runs.

        `running` is the command that was under way.
        """
        better = await self._explain(lost, running)
        if better is lost:
            raise lost
        raise better from lost

    async def _explain(self, lost: ConnectionLost, running: str | None) -> SkerryError:
        try:
            info = await self.provider.get(self.sandbox_id)
        except SandboxNotFound as error:
            return SandboxNotFound(f"sandbox {self.sandbox_id} is gone: {error}")
        except SkerryError:
            return lost
        if info.state is State.DESTROYED:
            return SandboxNotFound(f"sandbox {self.sandbox_id} has ended")
        if info.state in (State.STOPPING, State.STOPPED, State.PAUSED, State.ARCHIVED):
            because = f": {info.reason}" if info.reason else ""
            return SandboxStopped(f"sandbox {self.sandbox_id} is {info.state}{because}")
        if info.state is State.FAILED:
            self._tell_lost(SandboxFailed.code, info.reason or "failed", running)
            return SandboxFailed(f"sandbox {self.sandbox_id} failed: {info.reason or 'no reason is known'}")
        self._tell_lost(lost.code, lost.message, running)
        return lost

    async def close(self) -> None:
        """Close every session; the sandbox itself keeps running."""
        await self.drop(self.sessions())

    def fields(self, op: str, started: float | None = None) -> dict[str, object]:
        """The extra fields of a log record; `started` is a `time.perf_counter()`."""
        extra: dict[str, object] = {"sandbox_id": self.sandbox_id, "provider": self.provider.name, "op": op}
        if started is not None:
            extra["duration"] = time.perf_counter() - started
        return extra


class PassiveLink(Link):
    """The same connection, for calls that must not start or resume the sandbox."""

    def __init__(self, link: Link) -> None:
        self.__dict__ = link.__dict__  # one state: what happens to either has happened to both

    async def session(self, *, start: bool = True) -> Session:
        return await super().session(start=False)


async def _close(session: Session) -> None:
    if session.loop is asyncio.get_running_loop():
        await session.aclose()
    else:
        session.discard()


class Opening:
    """See `Link.open`."""

    __slots__ = ("_began", "_link", "_message", "_on_notice", "_stream")

    def __init__(self, link: Link, message: Opener, on_notice: Callable[[Notice], None] | None) -> None:
        self._link, self._message, self._on_notice = link, message, on_notice
        self._began = time.perf_counter()
        self._stream: Stream | None = None

    async def __aenter__(self) -> Stream:
        session = await self._link.session(start=not self._message.shape.of_process)
        try:
            self._stream = session.open(self._message, on_notice=self._on_notice)
        except ConnectionLost as lost:
            await self._link.raise_lost(lost, _command(self._message))
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
            await self._link.raise_lost(error, _command(self._message))


def _command(message: Opener) -> str | None:
    """What a request was to run, if it was to run something."""
    if not isinstance(message, Start):
        return None
    return shlex.join(word.decode("utf-8", "replace") for word in message.argv)[:MAX_COMMAND]
