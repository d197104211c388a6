"""The output of a command while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import anyio

from skerry._model import Model
from skerry.core import ConnectionLost, ExecResult, InvalidArgument, ProcessNotFound
from skerry.sdk.blocking.portal import caller
from skerry.sdk.commands.exchange import Running
from skerry.sdk.commands.output import LineDecoder, OutputChunk, OutputStream, TextDecoder
from skerry.sdk.commands.request import Request, check_whole
from skerry.sdk.connection.link import CONTROL_GUARD, Link
from skerry.sdk.connection.stream import Stream
from skerry.sdk.processes.table import find_process, is_known, start_offsets
from skerry.wire import STDERR, STDOUT, Attach, AttachFlags, Empty, Signal

SIGKILL = 9
CHANNELS: dict[OutputStream, int] = {"stdout": STDOUT, "stderr": STDERR}


class Attachment(Model, kw_only=False):
    """What to attach to, from where on, and whether only to look."""

    id: int
    since: int | tuple[int, int]
    view: bool

    async def message(self, link: Link) -> Attach:
        """Raises ProcessNotFound, InvalidArgument."""
        since = self.since
        if isinstance(since, int) and since > 0:
            since = start_offsets(since, await find_process(link, self.id))
        out, err = (since, since) if isinstance(since, int) else since
        return Attach(id=self.id, since_stdout=out, since_stderr=err, flags=int(AttachFlags.VIEW) if self.view else 0)


class _Queue:
    """The chunks that an iterator has not taken yet."""

    __slots__ = ("end", "items", "reader", "users")

    def __init__(self, reader: object) -> None:
        self.items: deque[bytes] = deque()
        self.reader = reader
        """The caller that took from it last."""
        self.users = 0
        """How many iterators take from it."""
        self.end = -1
        """Where `wait()` took over: the offset up to which all was handed out. -1: it did not."""


class AsyncExecStream:
    """Iterate it for chunks of output in the order they came; it ends with the command.

    The command starts with `async with`, with the first chunk, or with `wait()`. Leaving the `async with` block before
    the end kills a command of `exec_stream` with all its descendants, and only detaches from a background process. The
    command is held back while nobody takes its output. Iterate either the whole stream, or its `stdout` and `stderr`;
    the bytes of a stream that nobody iterates are kept for `wait()` up to the output limit. `wait()` takes over
    iterators that the same task has begun and left: used again, such an iterator raises InvalidArgument if there was
    more.
    """

    def __init__(self, link: Link, request: Request, attach: Attachment | None = None) -> None:
        self._link = link
        self._request = request
        self._attach = attach
        self._running: Running | None = None
        self._result: ExecResult | None = None
        self._queues: dict[int, _Queue] = {}
        self._handed_out: set[int] = set()
        # Lets one task at a time take from the stream; the others find their bytes in the queues.
        self._lock = anyio.Lock(fast_acquire=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give up a command that still runs, as leaving the `async with` block does. Harmless afterwards."""
        self._close()

    def _close(self) -> None:
        if self._running is not None:
            self._running.close()

    def __del__(self) -> None:
        running = self._running
        if running is not None and not running.stream.ended and not running.stream.session.loop.is_closed():
            running.stream.session.loop.call_soon_threadsafe(running.close)

    async def _start(self) -> Running:
        if self._running is not None and self._running.started is not None:
            return self._running
        async with self._lock:
            if self._running is None:
                self._running = await self._open()
            while self._running.started is None:
                await self._advance(self._running, CONTROL_GUARD)
        return self._running

    async def _open(self) -> Running:
        session = await self._link.session(start=self._attach is None)
        limit = self._request.output_limit
        if self._attach is None:
            stream = session.open(self._request.start)
            running = Running(stream, self._request.command, output_limit=limit)
            running.begin(self._request)
            return running
        attach = await self._attach.message(self._link)
        since = (attach.since_stdout, attach.since_stderr)
        stream = session.open(attach)
        return Running(stream, self._request.command, output_limit=limit, since=since)

    async def _advance(self, running: Running, guard: float | None = None) -> OutputChunk | None:
        """Take one item from the agent."""
        try:
            item = await running.stream.next(guard)
        except ConnectionLost as lost:
            await self._link.raise_lost(lost, self._request.command)
        chunk = running.take(item)
        if running.exit is not None:
            running.close()
        return chunk

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        return self

    async def __anext__(self) -> OutputChunk:
        running = await self._start()
        async with self._lock:
            while running.exit is None:
                chunk = await self._advance(running)
                if chunk is not None:
                    channel = CHANNELS[chunk.stream]
                    self._handed_out.add(channel)
                    running.stream.took(channel, len(chunk.data))
                    return chunk
        raise StopAsyncIteration

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """The bytes of standard output; may be iterated together with `stderr` by another task."""
        return self._bytes(STDOUT)

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        """The bytes of standard error; may be iterated together with `stdout` by another task."""
        return self._bytes(STDERR)

    async def text(self, stream: OutputStream = "stdout") -> AsyncIterator[str]:
        """One of the streams as text, decoded piece by piece; undecodable bytes are replaced."""
        decoder = TextDecoder()
        async for data in self._bytes(CHANNELS[stream]):
            if text := decoder.feed(data):
                yield text
        if text := decoder.feed(b"", end=True):
            yield text

    async def lines(self, stream: OutputStream = "stdout") -> AsyncIterator[str]:
        """One of the streams line by line, without the newlines; a line above 1 Mi characters comes in pieces."""
        decoder = LineDecoder()
        async for text in self.text(stream):
            for line in decoder.feed(text):
                yield line
        for line in decoder.finish():
            yield line

    async def _bytes(self, channel: int) -> AsyncIterator[bytes]:
        running = await self._start()
        queue = self._queues.setdefault(channel, _Queue(caller()))
        queue.users += 1
        try:
            earlier = b"" if channel in self._handed_out else running.collectors[channel].value()
            self._handed_out.add(channel)
            if earlier:
                yield earlier
            while True:
                queue.reader = caller()
                if 0 <= queue.end < running.end(channel):
                    raise InvalidArgument("wait() has read on", hint="what this iterator did not take is in its result")
                if queue.end >= 0 and running.exit is None:  # a wait that was given up before anything came
                    queue.end, self._queues[channel] = -1, queue
                if queue.items:
                    data = queue.items.popleft()
                    running.stream.took(channel, len(data))
                    yield data
                    continue
                if running.exit is not None:
                    return
                async with self._lock:
                    if not queue.items and running.exit is None:
                        self._share(running, await self._advance(running))
        finally:
            queue.users -= 1
            if not queue.users and self._queues.get(channel) is queue:
                del self._queues[channel]
                running.stream.took(channel, sum(map(len, queue.items)))

    def _share(self, running: Running, chunk: OutputChunk | None) -> None:
        """Queue a chunk for the task that iterates its stream; if there is none, the collector has the chunk."""
        if chunk is None:
            return
        channel = CHANNELS[chunk.stream]
        queue = self._queues.get(channel)
        if queue is None:
            running.stream.took(channel, len(chunk.data))
        else:
            queue.items.append(chunk.data)

    def _withdraw(self, running: Running) -> None:
        """Take the place of the caller's own iterators: while it waits, it cannot continue with them."""
        for channel, queue in list(self._queues.items()):
            if queue.reader == caller():
                held = sum(map(len, queue.items))
                queue.end = running.end(channel) - held
                queue.items.clear()
                running.stream.took(channel, held)
                del self._queues[channel]

    async def wait(self) -> ExecResult:
        """Read the rest and return how the command ended, with the output kept up to the output limit.

        Raises:
            CommandNotFound: the program is not there.
            ConnectionLost, SandboxNotFound, SandboxFailed: the exit cannot be known.
        """
        running = await self._start()
        self._withdraw(running)
        while running.exit is None:
            async with self._lock:
                if running.exit is None:
                    self._share(running, await self._advance(running))
        if self._result is None:
            self._result = self._link.ran(running.result())
        return self._result

    async def kill(self, signal: int = SIGKILL) -> None:
        """Send a signal: SIGKILL goes to the command and all its descendants, others to its process group.

        Does nothing if the command has ended.
        """
        running = await self._start()
        if running.exit is None and running.started is not None:
            try:
                await send_signal(self._link, running.started.id, signal)
            except ProcessNotFound:
                return

    @property
    def input_stream(self) -> Stream | None:
        """For the process handle that made this: where its input goes."""
        return None if self._running is None else self._running.stream

    @property
    def is_attached(self) -> bool:
        """Whether the command has begun, has not ended and has not been given up."""
        return self._running is not None and not self._running.stream.ended

    @property
    def pid(self) -> int:
        """The process id inside the sandbox; 0 before the start."""
        running = self._running
        return 0 if running is None or running.started is None else running.started.pid

    @property
    def gap(self) -> int:
        """How many bytes that were asked for were no longer in the ring buffers, so far."""
        return 0 if self._running is None else self._running.gap


async def send_signal(link: Link, process_id: int, signal: int) -> None:
    """A process that has ended is left alone. Raises ProcessNotFound for an unknown one."""
    if check_whole(signal, "signal", least=1) > 64:
        raise InvalidArgument(f"{signal!r} is not a signal")
    scope = 1 if signal == SIGKILL else 0
    try:
        await link.request(Signal(id=process_id, signal=int(signal), scope=scope), Empty)
    except ProcessNotFound:
        if not await is_known(link, process_id):
            raise
