"""One stream of a session: what the agent sends on it, checked and bounded, and the credit in both directions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from skerry.core import ConnectionLost, InvalidArgument, SkerryError
from skerry.wire import (
    CHANNEL_MASK,
    END,
    FINAL,
    INPUT_WINDOW,
    FieldError,
    FrameError,
    Message,
    Notice,
    Opener,
    credit_frame,
    data_frame,
    data_head,
    parse_credit,
    parse_data,
)

if TYPE_CHECKING:
    from skerry.sdk.connection.session import Session

M = TypeVar("M", bound=Message)

MAX_QUEUED = 4096
"""Items held apart; past this, bytes join the last item of their channel, so that tiny frames cost no memory."""
LARGE = 32 * 1024
"""Bytes to send from this on are not copied."""
PIECE = 128 * 1024
"""The most bytes of one frame that is sent."""
MAX_OFFSET = 1 << 62
MAX_NOTICE = 1024


def unheard(notice: Notice) -> None:
    """Takes notices where nobody needs the news."""


class Data:
    """Bytes of one channel at an offset; `end` says that the channel has no more."""

    __slots__ = ("channel", "data", "end", "offset")

    def __init__(self, channel: int, offset: int, data: bytes | bytearray | memoryview, end: bool) -> None:
        self.channel, self.offset, self.data, self.end = channel, offset, data, end


class Reply:
    """The fields of a REPLY; `final` says that the stream has ended with it."""

    __slots__ = ("final", "payload")

    def __init__(self, payload: bytes, final: bool) -> None:
        self.payload, self.final = payload, final


class _Inflow:
    """What the agent may still send on a channel, and at which offset it must continue."""

    __slots__ = ("credit", "ended", "last", "offset", "taken")

    def __init__(self, window: int, offset: int) -> None:
        self.credit, self.offset, self.taken, self.ended = window, offset, 0, False
        self.last: Data | None = None


class Stream:
    """Made by `Session.open`. One task at a time may call `next`; any number may `send`, in turn."""

    def __init__(self, session: Session, id: int, opener: Opener, on_notice: Callable[[Notice], None] | None) -> None:
        shape, window = opener.shape, opener.window
        self.id = id
        self.session = session
        self.ended = False
        """Whether the agent has ended it, it was closed, or it failed."""
        self.closed = False
        """Whether it was closed from this side before the agent ended it."""
        self._window = window
        self._inflows = {channel: _Inflow(window, opener.begins_at(channel)) for channel in shape.channels}
        self._outflow = INPUT_WINDOW if shape.input else -1
        self._out_offset = 0
        self.input_ended = not shape.input
        """Whether END has been sent, after which nothing more may be."""
        self._greeted = not shape.greets
        self._jumps = shape.jumps
        self._replies_left = shape.max_replies
        self._reply_bytes_left = shape.max_reply_bytes
        self._on_notice = on_notice or (unheard if shape.notices else None)
        self._discard = False
        self._inbox: deque[Data | Reply] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._credit_waiter: asyncio.Future[None] | None = None
        # Held by the one that sends: bytes of two are never mixed, and there is one to wait for credit.
        self._sending = asyncio.Lock()

    # What the session's reader calls; each raises FrameError when the agent broke the protocol.

    def on_data(self, flags: int, payload: bytes) -> None:
        channel, end = flags & CHANNEL_MASK, bool(flags & END)
        flow = self._inflows.get(channel)
        if flow is None or flow.ended:
            raise FrameError(f"DATA on channel {channel}, which carries none")
        if not self._greeted:
            raise FrameError("DATA before the first REPLY")
        offset, view = parse_data(payload)
        size = len(view)
        if size > flow.credit:
            raise FrameError(f"{size} bytes of DATA where {flow.credit} were granted")
        if not size and not end:
            raise FrameError("DATA without bytes")
        if offset != flow.offset and (offset < flow.offset or not self._jumps or offset > MAX_OFFSET):
            raise FrameError(f"DATA at offset {offset} where {flow.offset} is next")
        last = flow.last
        joins = last is not None and len(self._inbox) >= MAX_QUEUED and offset == flow.offset
        flow.offset, flow.ended = offset + size, end
        flow.credit -= size
        if self._discard:
            self.took(channel, size)
        elif joins and last is not None:
            if not isinstance(last.data, bytearray):
                last.data = bytearray(last.data)
            last.data += view
            last.end = end
        else:
            flow.last = item = Data(channel, offset, view, end)
            self._put(item)

    def on_reply(self, flags: int, payload: bytes) -> None:
        if self._on_notice is not None and self._greeted and not flags & FINAL:
            # Handed on at once and never kept, so that any number of them costs no memory.
            if len(payload) > MAX_NOTICE:
                raise FrameError(f"a notice of {len(payload)} bytes")
            self._on_notice(Notice.decode(payload))
            return
        self._replies_left -= 1
        self._reply_bytes_left -= len(payload)
        if self._replies_left < 0 or self._reply_bytes_left < 0:
            raise FrameError("more replies than the request allows")
        final = bool(flags & FINAL)
        self._greeted = True
        if final:
            self._finish()
        if not self._discard:
            self._put(Reply(payload, final))

    def on_credit(self, flags: int, payload: bytes) -> None:
        if self._outflow < 0 or flags & CHANNEL_MASK:
            raise FrameError("CREDIT for a channel that sends nothing")
        self._outflow += parse_credit(payload)
        _wake(self._credit_waiter)

    def on_error(self, error: SkerryError) -> None:
        """The stream has ended with `error`; what came before it is still read first."""
        self._error = error
        self._finish()
        _wake(self._waiter)

    def _put(self, item: Data | Reply) -> None:
        self._inbox.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _finish(self) -> None:
        self.ended = True
        self.session.forget(self.id)
        _wake(self._credit_waiter)

    # What the consumer calls.

    @property
    def lost(self) -> bool:
        """Whether it ended because its connection did."""
        return isinstance(self._error, ConnectionLost)

    @property
    def error(self) -> Exception | None:
        """What it failed with, if it has."""
        return self._error

    @property
    def pending(self) -> bool:
        """Whether something waits here to be taken."""
        return bool(self._inbox)

    async def next(self, guard: float | None = None) -> Data | Reply:
        """The next item. A caller that has used its bytes calls `took`.

        Raises the stream's error; ConnectionLost when nothing comes within `guard` seconds.
        """
        if not self._inbox:
            await self._wait(guard)
        item = self._inbox.popleft()
        if isinstance(item, Data) and (flow := self._inflows[item.channel]).last is item:
            flow.last = None
        return item

    async def _wait(self, guard: float | None) -> None:
        loop = self.session.loop
        timer = None if guard is None else loop.call_later(guard, self.abandon, "the agent did not answer in time")
        try:
            while not self._inbox:
                if self._error is not None:
                    raise self._error
                if self.ended:
                    raise ConnectionLost("the stream was closed")
                self.session.flush()
                self._waiter = loop.create_future()
                await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def took(self, channel: int, size: int) -> None:
        """Give the agent credit for bytes that are no longer held."""
        flow = self._inflows[channel]
        flow.taken += size
        if flow.taken * 2 >= self._window and not flow.ended and not self.ended:
            flow.credit += flow.taken
            self.session.queue(credit_frame(self.id, channel, flow.taken), soon=True)
            flow.taken = 0

    def discard(self) -> None:
        """Drop what is held and what comes; it is credited at once, so the other side is never held back."""
        self._discard = True
        held, self._inbox = self._inbox, deque()
        for item in held:
            if isinstance(item, Data):
                self.took(item.channel, len(item.data))

    def send_now(self, data: bytes | memoryview, *, end: bool) -> None:
        """DATA that fits in the credit at hand; it leaves with the next flush, together with what was queued before."""
        size = len(data)
        self._outflow -= size
        if size < LARGE:
            self.session.queue(data_frame(self.id, 0, self._out_offset, data, end=end))
        else:
            self.session.queue(data_head(self.id, 0, self._out_offset, size, end=end))
            self.session.queue(data)
        self._out_offset += size
        self.input_ended = end

    async def send(self, data: bytes | bytearray | memoryview, *, end: bool = False) -> bool:
        """DATA on channel 0, as credit allows. False: the stream has ended and the rest was not sent.

        If this is cancelled, some bytes may have been sent, in order and without a gap; later bytes follow them.
        Raises InvalidArgument for bytes after END; another END is not an error.
        """
        view = memoryview(data)
        async with self._sending:
            if len(view) < LARGE or isinstance(view.obj, bytes):
                return await self._send(view, end)
            try:
                sent = await self._send(view, end)
                await self.session.sent()
                return sent
            finally:
                self.session.keep()

    async def _send(self, view: memoryview, end: bool) -> bool:
        if self.input_ended:
            if view.nbytes:
                raise InvalidArgument("the input was closed")
            return True
        while not self.ended:
            await self.session.room()
            if self._closed():
                break
            size = min(len(view), self._outflow, PIECE)
            last = size == len(view)
            if size or (last and end):
                self.send_now(view[:size], end=last and end)
                view = view[size:]
            if last:
                self.session.flush()
                return True
            if not self._outflow:
                self.session.flush()
                self._credit_waiter = self.session.loop.create_future()
                try:
                    await self._credit_waiter
                finally:
                    self._credit_waiter = None
        return False

    def _closed(self) -> bool:
        return self.ended

    def decode(self, kind: type[M], payload: bytes) -> M:
        """The message in `payload`. A malformed one ends the session and raises Corrupted."""
        try:
            return kind.decode(payload)
        except FieldError as error:
            raise self.corrupt(f"{kind.__name__}: {error}") from error

    def corrupt(self, what: str) -> SkerryError:
        """End the session because the agent broke the protocol; the error to raise."""
        return self.session.corrupt(what)

    def close(self) -> None:
        """Abandon or detach from the stream; harmless once it has ended. Needs no waiting."""
        self._inbox.clear()
        if not self.ended:
            self.closed = True
            self.session.close_stream(self.id)
            self._finish()
            _wake(self._waiter)

    def abandon(self, why: str) -> None:
        """Close the stream; tasks that wait on it get ConnectionLost."""
        if not self.ended:
            self.fail(ConnectionLost(why))

    def fail(self, error: Exception) -> None:
        """Close the stream; tasks that wait on it get `error`."""
        self._error = error
        self.close()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
