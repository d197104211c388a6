"""Bytes to and from an agent, as callbacks: straight on a socket where there is one, else over any byte stream."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice

import anyio
from anyio.abc import ByteStream

from skerry.core import Ends, Pipe, PipeStream, raw_socket

READ_SIZE = 256 * 1024
MOST_PARTS = 1000
"""Of one system call: the kernel takes 1,024."""
SEND_BUFFER = 512 * 1024
LINGER = 1.0
"""How long a stream that cannot be written any more is still read: what the other side said last may be in it."""

BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class _Local(threading.local):
    """One buffer to receive into for each thread: what is in it is taken before the next receive."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_SIZE))


_local = _Local()


def open_pipe(stream: ByteStream, ends: Ends) -> Pipe:
    """The quickest pipe for `stream`, which now belongs to it."""
    if isinstance(stream, PipeStream):
        return stream.into_pipe(ends)
    raw = raw_socket(stream)
    return StreamPipe(stream, ends) if raw is None else SocketPipe(stream, raw, ends)


class SocketPipe:
    """Reads and writes a non-blocking socket from the loop's own callbacks: no task, no checkpoint a call."""

    def __init__(self, stream: ByteStream, raw: socket.socket, ends: Ends) -> None:
        self.pending = 0
        self._stream, self._socket, self._ends = stream, raw, ends
        self._loop = asyncio.get_running_loop()
        self._fd = raw.fileno()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._unsent: deque[bytes | memoryview] = deque()
        self._closed = False
        self._linger: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._readable)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._closed or self._linger is not None:
            return
        waits = bool(self._unsent)
        self._unsent.extend(parts)
        self.pending += sum(map(len, parts))
        if not waits:
            self._send()
            if self._unsent:
                self._loop.add_writer(self._fd, self._writable)

    def keep(self) -> None:
        self._unsent = deque(bytes(part) for part in self._unsent)

    def _send(self) -> None:
        unsent = self._unsent
        try:
            sent = self._socket.sendmsg(islice(unsent, MOST_PARTS)) if len(unsent) > 1 else self._socket.send(unsent[0])
        except BlockingIOError:
            return
        except OSError as error:
            self._linger = self._loop.call_later(LINGER, self._end, error)
            sent = self.pending
        self.pending -= sent
        while sent and sent >= len(unsent[0]):
            sent -= len(unsent.popleft())
        if sent:
            unsent[0] = memoryview(unsent[0])[sent:]

    def _writable(self) -> None:
        self._send()
        if not self._unsent and not self._closed:
            self._loop.remove_writer(self._fd)
            self._ends.drained()

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(buffer := _local.buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if size:
            self._ends.received(buffer[:size])
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self.close()
            self._ends.ended(error)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._linger is not None:
                self._linger.cancel()
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
                self._loop.remove_writer(self._fd)
            self._socket.close()

    async def wait_closed(self) -> None:
        await self._stream.aclose()


class StreamPipe:
    """Reads and writes any byte stream by two tasks, which `close` ends."""

    def __init__(self, stream: ByteStream, ends: Ends) -> None:
        self.pending = 0
        self._stream, self._ends = stream, ends
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._wake: asyncio.Future[None] | None = None
        self._closed = False
        self._writer = self._loop.create_task(self._write())
        self._reader = self._loop.create_task(self._read())

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        for data in parts:
            self._unsent += data
            self.pending += len(data)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def keep(self) -> None:
        pass

    async def _write(self) -> None:
        try:
            while True:
                while not self._unsent:
                    self._wake = self._loop.create_future()
                    await self._wake
                data, self._unsent = bytes(self._unsent), bytearray()
                await self._stream.send(data)
                self.pending -= len(data)
                if not self.pending:
                    self._ends.drained()
        except BROKEN as error:
            await asyncio.sleep(LINGER)
            self._end(error)

    async def _read(self) -> None:
        try:
            while True:
                self._ends.received(await self._stream.receive(READ_SIZE))
        except anyio.EndOfStream:
            self._end(None)
        except BROKEN as error:
            self._end(error)
        finally:
            with anyio.move_on_after(2, shield=True):
                await self._stream.aclose()

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self.close()
            self._ends.ended(error)

    def close(self) -> None:
        self._closed = True
        for task in (self._reader, self._writer):
            if task is not asyncio.current_task(self._loop):
                task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._reader, self._writer])
