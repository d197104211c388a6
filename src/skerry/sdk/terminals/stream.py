"""What a terminal shows while it runs, over as many connections as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import anyio

from skerry.core import Conflict, ConnectionLost, ExecStatus, InvalidArgument, ProcessNotFound, TerminalExit
from skerry.sdk.commands.exchange import Running, ended_as
from skerry.sdk.commands.output import TerminalChunk
from skerry.sdk.commands.request import check_bytes
from skerry.sdk.connection.link import CONTROL_GUARD, Link
from skerry.sdk.processes.table import sound_size
from skerry.wire import STDOUT, Attach, Attached, AttachFlags, FrameError, Notice

RETRIES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds after each attempt to attach again that failed; what the last one raises counts."""


class AsyncTerminalStream:
    """Iterate it for chunks of what the terminal shows; it ends with the terminal's program.

    It attaches with `async with`, with the first chunk, or with `write`; leaving the block only detaches. When the
    connection is lost while the sandbox runs, it attaches again from the last byte it gave out, for about three
    seconds: nothing is doubled, and what the ring buffer no longer has is counted in `gap`.
    """

    def __init__(self, link: Link, id: int, *, since: int, view: bool, quiet: bool = False) -> None:
        self._link, self._id, self._view = link, id, view
        self._since = since
        self._quiet = quiet
        self._running: Running | None = None
        self._closed = False
        self._gap = 0
        self._taken_over = False
        self._size: tuple[int, int] | None = None
        self._exit: TerminalExit | None = None
        self._news = asyncio.Event()
        # One keeps two tasks from attaching at the same time, the other lets one at a time take chunks.
        self._connecting, self._reading = asyncio.Lock(), asyncio.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def __aenter__(self) -> Self:
        await self._attached()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Detach; the terminal keeps running. Harmless afterwards."""
        self.let_go()

    def let_go(self) -> None:
        self._closed = True
        self._news.set()
        if self._running is not None:
            self._running.close()

    def __del__(self) -> None:
        running = self._running
        if running is not None and not running.stream.ended and not running.stream.session.loop.is_closed():
            running.stream.session.loop.call_soon_threadsafe(running.close)

    @property
    def gap(self) -> int:
        """How many bytes that were asked for were no longer in the ring buffer, so far."""
        return self._gap + (0 if self._running is None else self._running.gap)

    @property
    def controls(self) -> bool:
        """Whether this stream can type: False for a viewer, and once another client has taken over."""
        return not self._view and not self._taken_over

    @property
    def size(self) -> tuple[int, int] | None:
        """Columns and rows, as last known; None before it is attached."""
        return self._size

    @property
    def exit(self) -> TerminalExit | None:
        """How the program ended; None until all it wrote has been taken."""
        return self._exit

    async def changed(self) -> None:
        """Wait for news of `controls` or `size` since the last call, or until the stream has ended or is closed."""
        if self._exit is None and not self._closed:
            await self._news.wait()
            self._news.clear()

    def __aiter__(self) -> AsyncIterator[TerminalChunk]:
        return self

    async def __anext__(self) -> TerminalChunk:
        async with self._reading:
            while self._exit is None:
                running = await self._attached()
                try:
                    item = await running.stream.next()
                except ConnectionLost:
                    if self._closed or not running.stream.lost:
                        raise
                    continue
                if running is not self._running:
                    continue  # attached again since: these bytes come once more
                chunk = running.take(item)
                if chunk is not None:
                    running.stream.took(STDOUT, len(chunk.data))
                    return TerminalChunk(chunk.data, chunk.offset)
                if running.exit is not None:
                    self._finish(running)
        raise StopAsyncIteration

    async def write(self, data: bytes | str) -> None:
        """Type `data`; waits while the terminal does not take it.

        Raises:
            InvalidArgument: this stream only views.
            Conflict: another client has taken over; attaching again takes it back.
            ProcessNotFound: the program has ended.
            ConnectionLost: some of it may have been typed.
        """
        encoded = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else check_bytes(data)
        if self._view:
            raise InvalidArgument("this one only views", hint="get the terminal without view=True")
        stream = (await self._attached()).stream
        if self._taken_over:
            raise Conflict(f"another client has taken over terminal {self._id}", hint="attach again to take it back")
        if not await stream.send(encoded):
            if stream.lost:
                raise ConnectionLost(f"the connection was lost while typing into terminal {self._id}")
            raise ProcessNotFound(f"terminal {self._id} has ended")

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """For the handle that made this: whether it is in use, in that event loop."""
        running = self._running
        return not self._closed and running is not None and running.stream.session.loop is loop

    async def _attached(self) -> Running:
        """The attachment of now: the one there is, unless its connection was lost."""
        running = self._running
        if running is not None and not (self._closed or running.stream.lost or self._connecting.locked()):
            return running
        async with self._connecting:
            running = self._running
            if self._closed:
                raise ConnectionLost("the stream was closed")
            if running is None:
                return await self._attach()
            if not running.stream.lost:
                return running
            return await self._attach_again(running)

    async def _attach_again(self, lost: Running) -> Running:
        if lost.stream.session.closed:
            raise ConnectionLost("the connection was closed")
        for delay in RETRIES:
            try:
                return await self._attach()
            except ConnectionLost:
                await anyio.sleep(delay)
        return await self._attach()

    async def _attach(self) -> Running:
        session = await self._link.session(start=False)
        former, view = self._running, self._view or self._taken_over
        # From here to where the stream is ours nothing may wait: a byte taken in between would come twice.
        since = self._since if former is None or former.started is None or self._quiet else former.end(STDOUT)
        stream = session.open(
            Attach(id=self._id, since_stdout=since, since_stderr=-1, flags=int(AttachFlags.VIEW) if view else 0),
            on_notice=self._notice,
        )
        if former is not None:
            self._since = since
            self._gap += former.gap
        self._running = running = Running(stream, "", output_limit=0, since=(since, -1))
        try:
            running.take(await stream.next(CONTROL_GUARD))
            self._greet(running)
        except ConnectionLost as lost:
            await self._link.raise_lost(lost)
        except asyncio.CancelledError:
            stream.abandon("attaching was cancelled")
            raise
        if self._quiet:
            stream.discard()
        return running

    def _greet(self, running: Running) -> None:
        started = running.started
        size = sound_size(started.cols, started.rows) if isinstance(started, Attached) else None
        if size is None:
            raise running.stream.corrupt("a terminal without a size")
        self._size = size

    def _notice(self, notice: Notice) -> None:
        if notice.controls == 0:
            self._taken_over = True
        elif notice.controls is not None:
            raise FrameError(f"a notice with controls {notice.controls}")
        if notice.cols is not None or notice.rows is not None:
            size = sound_size(notice.cols, notice.rows)
            if size is None:
                raise FrameError(f"a notice of {notice.cols} columns and {notice.rows} rows")
            self._size = size
        self._news.set()

    def _finish(self, running: Running) -> None:
        exit = running.exit
        assert exit is not None
        self._exit = TerminalExit(
            exit_code=exit.exit_code,
            signal=exit.signal,
            status=ended_as(ExecStatus(exit.status), exit.exit_code, exit.oom_kills),
            duration=exit.duration_us / 1e6,
            oom_killed=exit.oom_kills > 0,
        )
        self._news.set()
        running.close()
