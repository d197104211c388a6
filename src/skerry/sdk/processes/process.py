"""A background process: it outlives the client that started it, and any client can attach again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio

from skerry.core import ConnectionLost, ExecResult, InvalidArgument, ProcessInfo, ProcessNotFound
from skerry.sdk.commands.exec_stream import SIGKILL, AsyncExecStream, Attachment, send_signal
from skerry.sdk.commands.output import OUTPUT_LIMIT, OutputChunk, ProcessOutput
from skerry.sdk.commands.request import Request, check_bytes
from skerry.sdk.connection.link import Link
from skerry.sdk.connection.stream import Stream
from skerry.sdk.processes.ring import read_rings
from skerry.sdk.processes.table import find_process, first_reply, start_offsets
from skerry.wire import Attach, Attached, Start

Since = int | tuple[int, int]
"""Bytes to leave out of each stream, or an offset in stdout and one in stderr; -1 is "only what comes".

If a stream has written less than the one number, all of that is left out, and nothing that comes later."""


class AsyncProcess:
    """A background process. It keeps running when the handle, the connection or the client is gone.

    With nobody attached it is never held back: its last output, 1 MiB for each stream, stays in a ring buffer.
    Iterating, `attach` and `wait` attach to it; while attached, the process waits for its output to be taken.
    """

    def __init__(self, link: Link, *, id: int, pid: int, command: str, view: bool, control: Stream | None) -> None:
        self._link = link
        self._id, self._pid, self._command, self._view = id, pid, command, view
        self._control = control
        self._attached: AsyncExecStream | None = None
        self._stdin_closed = False
        self._result: ExecResult | None = None
        # Keeps two tasks from attaching for their input: the second would take over and lose what the first sends.
        self._attaching = anyio.Lock(fast_acquire=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._link.sandbox_id}>"

    @property
    def id(self) -> int:
        """What `processes.get` takes; never used again in this sandbox."""
        return self._id

    @property
    def pid(self) -> int:
        """The process id inside the sandbox."""
        return self._pid

    def attach(self, *, since: Since = 0, output_limit: int = OUTPUT_LIMIT) -> AsyncExecStream:
        """The process's output from `since` on, and its end; `gap` says how much of that is no longer there.

        Takes over from the client that was attached, unless this handle only views.
        """
        stream = self._stream(_check_since(since, least=-1), output_limit, view=self._view)
        if not self._view:
            self._let_go()
            self._attached = stream
        return stream

    def _stream(self, since: Since, output_limit: int, *, view: bool) -> AsyncExecStream:
        request = Request(self._command, Start(argv=()), None, None, output_limit)
        return AsyncExecStream(self._link, request, Attachment(self._id, since, view))

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[OutputChunk]:
        async with self.attach() as stream:
            async for chunk in stream:
                yield chunk

    async def wait(self) -> ExecResult:
        """Wait for the end; the result has the output that is still there, up to 8 MiB for each stream.

        Raises:
            ProcessNotFound: it ended so long ago that it is forgotten.
        """
        if self._result is None:
            # A task that iterates this handle keeps what it has: then this one only looks on.
            busy = self._attached is not None and self._attached.is_attached
            stream = self._stream(0, OUTPUT_LIMIT, view=True) if busy else self.attach()
            async with stream:
                self._result = await stream.wait()
        return self._result

    async def poll(self) -> ProcessInfo:
        """The state of the process now, without waiting. Raises ProcessNotFound."""
        return await find_process(self._link, self._id)

    async def output(self, *, since: Since = 0) -> ProcessOutput:
        """What the ring buffers hold now from `since` on. Neither waits nor holds the process back.

        To continue without a loss, pass what `next` says.

        Raises ProcessNotFound, and InvalidArgument for an offset beyond the end, or one number beyond both ends.
        """
        _check_since(since, least=0)
        info = await find_process(self._link, self._id)
        start = start_offsets(since, info)
        return await read_rings(self._link, self._id, start, (info.stdout_bytes, info.stderr_bytes))

    async def write_stdin(self, data: bytes | str) -> None:
        """Send input; waits while the process does not read it. Tasks that write at once do so one after the other.

        Raises:
            InvalidArgument: the handle only views, or the input was closed.
            ProcessNotFound: the process has ended.
            QuotaExceeded: it has left too much input of several clients unread.
            ConnectionLost: the connection was lost, or `attach` called, during the write; some may have been sent.
        """
        encoded = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else check_bytes(data)
        await self._send(encoded)

    async def close_stdin(self) -> None:
        """Close the input of the process; closing it again is not an error. Raises as `write_stdin` does."""
        if not self._stdin_closed:
            await self._send(b"", end=True)
            self._stdin_closed = True

    async def _send(self, data: bytes | bytearray | memoryview, *, end: bool = False) -> None:
        if self._stdin_closed:
            raise InvalidArgument(f"the input of process {self._id} was closed")
        stream = await self._input()
        if await stream.send(data, end=end):
            return
        if stream.lost or stream.closed:
            raise ConnectionLost(f"what carried the input of process {self._id} was closed: some may have been sent")
        if stream.error is not None:
            raise stream.error
        raise ProcessNotFound(f"process {self._id} has ended")

    async def kill(self, signal: int = SIGKILL) -> None:
        """Send a signal: SIGKILL goes to the process and all its descendants, others to its process group.

        Does nothing if the process has ended. Raises ProcessNotFound when it ended so long ago that it is forgotten.
        """
        await send_signal(self._link, self._id, signal)

    async def _input(self) -> Stream:
        """The stream that carries input: the one attached, else one whose output is dropped."""
        if self._view:
            raise InvalidArgument("this handle only views", hint="get the process without view=True")
        async with self._attaching:
            return self._present_input() or await self._attach_input()

    def _present_input(self) -> Stream | None:
        loop = asyncio.get_running_loop()
        attached = None if self._attached is None else self._attached.input_stream
        for stream in (attached, self._control):
            if stream is not None and not stream.ended and stream.session.loop is loop:
                return stream
        return None

    async def _attach_input(self) -> Stream:
        session = await self._link.session(start=False)
        message = Attach(id=self._id, since_stdout=-1, since_stderr=-1)
        stream = session.open(message)
        try:
            await first_reply(self._link, stream, Attached)
        except asyncio.CancelledError:
            stream.close()
            raise
        stream.discard()
        self._control = stream
        return stream

    def _let_go(self) -> None:
        if self._control is not None and not self._control.ended:
            self._control.close()
        self._control = None


def _check_since(since: Since, *, least: int) -> Since:
    pair = (since, since) if isinstance(since, int) else tuple(since)
    if len(pair) != 2 or not all(type(offset) is int and offset >= least for offset in pair):
        raise InvalidArgument(f"since must be a byte offset or a pair of them, not {since!r}")
    return since if isinstance(since, int) else (pair[0], pair[1])
