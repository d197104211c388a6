"""One multiplexed connection to an agent. Everything that the agent sends is treated as hostile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from skerry.core import (
    Channel,
    ConnectionLost,
    Corrupted,
    HelloReader,
    SkerryError,
    TooLarge,
    Unauthenticated,
    agent_error,
    hello_frame,
)
from skerry.sdk.connection.stream import Stream
from skerry.sdk.connection.transport import open_pipe
from skerry.wire import (
    MAX_PAYLOAD,
    MAX_START,
    Decoder,
    Failure,
    FieldError,
    Frame,
    FrameError,
    Hello,
    Notice,
    Opener,
    Start,
    Type,
    encode_frame,
)

OUTBOX_SOFT = 1 << 20
"""Above this, a task that wants to send more waits."""
JOINED = 32 << 10
"""Up to this, frames are copied into one piece."""
OUTBOX_MAX = 8 << 20
"""Above this, the agent makes us answer without reading the answers."""
MAX_PING = 64
DATA, REPLY, CREDIT, ERROR = (int(kind) for kind in (Type.DATA, Type.REPLY, Type.CREDIT, Type.ERROR))


class Session:
    """Streams over one channel; belongs to the event loop it was made in.

    When the agent breaks the protocol, every open stream ends with Corrupted; when the connection ends, with
    ConnectionLost. `on_end` is called once, with the reason. `excused` says whether there is a reason for the agent to
    be silent: its sandbox is paused.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        ping_after: float = 15.0,
        lost_after: float = 30.0,
        on_end: Callable[[SkerryError], None] | None = None,
        excused: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.hello: Hello | None = channel.greeting
        self.error: SkerryError | None = None
        """Why the session has ended; None while it lives."""
        self.closed = False
        """Whether it was ended from this side."""
        self._on_end, self._excused = on_end, excused
        self._asking: asyncio.Task[None] | None = None
        self._ping_after, self._lost_after = ping_after, lost_after
        self._streams: dict[int, Stream] = {}
        self._last_id = 0
        self._greeting, self._decoder = HelloReader(), Decoder()
        self._outbox: list[bytes | memoryview] = []
        self._outbox_size = 0
        self._flushing: asyncio.Handle | None = None
        self._room_waiters: list[asyncio.Future[None]] = []
        self._heard_at = self.loop.time()
        self._pinged_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pipe = open_pipe(channel.stream, self)
        if channel.greeting is None:
            self.queue(hello_frame(channel.token), soon=True)

    def open(self, message: Opener, *, on_notice: Callable[[Notice], None] | None = None) -> Stream:
        """Send `message` and return its stream. The agent may send what the message's `shape` allows.

        `on_notice` allows notices where the shape does not, and gets each; it raises FrameError for one that makes no
        sense.

        Raises TooLarge for a message above the frame size, and the session's error if it has ended.
        """
        if self.error is not None:
            raise _again(self.error)
        payload = message.encode()
        if len(payload) > MAX_PAYLOAD:
            self._check_large(message, len(payload))
        self._last_id += 1
        self.queue(encode_frame(self._last_id, message.type, payload))
        stream = self._streams[self._last_id] = Stream(self, self._last_id, message, on_notice)
        if self._timer is None:
            self._heard_at = self.loop.time()
            self._timer = self.loop.call_later(self._ping_after, self._check_alive, self._heard_at + self._ping_after)
        return stream

    def _check_large(self, message: Opener, size: int) -> None:
        if not isinstance(message, Start):
            raise TooLarge("the request is above 1 MiB", hint="pass large data by stdin or as a file")
        if size > MAX_START:
            raise TooLarge(
                "the command line and its environment are above 2 MiB", hint="pass large data by stdin or as a file"
            )
        if self.hello is not None and self.hello.generation < 2:
            hint = "start the sandbox again, or pass large data by stdin or as a file"
            raise TooLarge("the command line is above 1 MiB, which this sandbox's agent does not take yet", hint=hint)

    def queue(self, data: bytes | memoryview, *, soon: bool = False) -> None:
        """Add to what leaves with the next `flush`, or in the loop's next turn if `soon`."""
        self._outbox.append(data)
        self._outbox_size += len(data)
        if soon and self._flushing is None:
            self._flushing = self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send all that is queued, in one go."""
        self._flushing = None
        if self._outbox and self.error is None:
            parts, size = self._outbox, self._outbox_size
            self._outbox, self._outbox_size = [], 0
            self._pipe.write(parts if len(parts) == 1 or size > JOINED else [b"".join(parts)])

    @property
    def busy(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    @property
    def crowded(self) -> bool:
        """Whether enough data waits to leave that a sender should wait too."""
        return self._outbox_size + self._pipe.pending > OUTBOX_SOFT

    async def room(self) -> None:
        """Wait until little enough is queued."""
        while self.crowded and self.error is None:
            self.flush()
            if self._pipe.pending:
                await self._drained()

    async def sent(self) -> None:
        """Wait until all that was queued before has left."""
        self.flush()
        if self._pipe.pending and self.error is None:
            await self._drained()

    async def _drained(self) -> None:
        waiter = self.loop.create_future()
        self._room_waiters.append(waiter)
        await waiter

    def keep(self) -> None:
        """Copy what has not left: the memory of what was queued may change now."""
        self.flush()
        self._pipe.keep()

    def drained(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    def close_stream(self, stream_id: int) -> None:
        if self.error is None:
            self.queue(encode_frame(stream_id, Type.CLOSE), soon=True)

    def corrupt(self, what: str) -> SkerryError:
        """End the session because the agent broke the protocol; the error to raise."""
        error = Corrupted(f"the agent broke the protocol: {what}")
        self.end(error)
        return error

    def end(self, error: SkerryError) -> None:
        """End every stream with `error` and close the connection soon."""
        if self.error is not None:
            return
        self.error = error
        for stream in list(self._streams.values()):
            stream.on_error(_again(error))
        if not self.loop.is_closed():
            self.drained()
        for handle in (self._timer, self._flushing):
            if handle is not None:
                handle.cancel()
        if self._asking is not None and self._asking is not _current_task(self.loop):
            self._asking.cancel()
        self._pipe.close()
        if self._on_end is not None:
            self._on_end(error)

    def discard(self) -> None:
        """Close the connection from outside its event loop, which may itself be closed."""
        self.closed = True
        closed = ConnectionLost("the connection was closed")
        if self.loop.is_closed():
            self._streams.clear()
            self.end(closed)
        else:
            self.loop.call_soon_threadsafe(self.end, closed)

    async def aclose(self) -> None:
        """Close the connection; open streams get ConnectionLost."""
        self.closed = True
        self.end(ConnectionLost("the connection was closed"))
        await self._pipe.wait_closed()

    def received(self, data: memoryview | bytes) -> None:
        self._heard_at = self.loop.time()
        try:
            if self.hello is None:
                data = self._greeting.feed(data)
                self.hello = self._greeting.hello
            for frame in self._decoder.feed(data):
                self._route(frame)
        except (FrameError, FieldError) as error:
            self.corrupt(str(error))
        except SkerryError as error:
            self.end(error)
        except BaseException:
            # A bug of Skerry: nobody may wait for the rest of what came.
            self.end(Corrupted("what the agent sent could not be handled"))
            raise

    def ended(self, error: Exception | None) -> None:
        torn = " in the middle of a frame" if self._greeting.pending or self._decoder.pending else ""
        how = f"broke: {error!r}" if error is not None else f"was closed by the agent{torn}"
        self.end(ConnectionLost(f"the connection {how}"))

    def _route(self, frame: Frame) -> None:
        stream_id, kind, flags, payload = frame
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id == 0:
                self._control(kind, payload)
            elif stream_id > self._last_id:
                raise FrameError(f"a frame on stream {stream_id}, which was never opened")
        elif kind == DATA:
            stream.on_data(flags, payload)
        elif kind == REPLY:
            stream.on_reply(flags, payload)
        elif kind == CREDIT:
            stream.on_credit(flags, payload)
        elif kind == ERROR:
            stream.on_error(_failure(payload))
        else:
            raise FrameError(f"frame type {kind} on stream {stream_id}")

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == Type.PING and len(payload) <= MAX_PING:
            self.queue(encode_frame(0, Type.PONG, payload), soon=True)
            if self._outbox_size + self._pipe.pending > OUTBOX_MAX:
                raise FrameError("PING without reading the answers")
        elif kind == Type.ERROR:
            error = _failure(payload)
            if isinstance(error, Unauthenticated):
                raise error
            raise FrameError(f"the agent gave up the connection: {error.code}, {error}")
        elif kind != Type.PONG:
            raise FrameError(f"frame type {kind} on stream 0")

    def _check_alive(self, due: float) -> None:
        """While something is outstanding: ask after `ping_after` of silence, give up after `lost_after`."""
        self._timer = None
        if not self._streams:
            return
        now, silent_since = self.loop.time(), self._heard_at
        if self._pinged_at is not None and self._heard_at >= self._pinged_at:
            self._pinged_at = None
        if self._pinged_at is None and now - silent_since >= self._ping_after:
            self.queue(encode_frame(0, Type.PING), soon=True)
            self._pinged_at = now
        if self._pinged_at is None:
            wake = silent_since + self._ping_after
        else:
            wake = self._pinged_at + self._lost_after - self._ping_after
            # A loop that was itself held up has not read what may be waiting: give it another turn.
            if now >= wake and now - due > 1:
                wake = now + self._lost_after - self._ping_after
            elif now >= wake:
                self._asking = self.loop.create_task(self._give_up())
                return
        self._timer = self.loop.call_at(wake, self._check_alive, wake)

    async def _give_up(self) -> None:
        """End the session, unless its agent is excused: then it is asked again later."""
        excused = False
        try:
            excused = self._excused is not None and await self._excused()
        finally:
            if not excused:  # nor if that cannot be known: nobody may wait for ever
                self.end(ConnectionLost(f"the agent has not answered for {self._lost_after:g} s"))
        if excused and self.error is None:
            self._pinged_at, self._heard_at = None, self.loop.time()
            wake = self._heard_at + self._ping_after
            self._timer = self.loop.call_at(wake, self._check_alive, wake)


def _current_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    return None if loop.is_closed() else asyncio.current_task(loop)


def _failure(payload: bytes) -> SkerryError:
    """What an ERROR frame says. Raises FrameError for a code no agent sends."""
    failure = Failure.decode(payload)
    error = agent_error(failure.code, failure.errno, failure.message)
    if isinstance(error, Corrupted):
        raise FrameError(error.message)
    return error


def _again(error: SkerryError) -> SkerryError:
    """The same error as a new object, since each is raised in another task."""
    copy = type(error)(error.message)
    copy.__cause__ = error
    return copy
