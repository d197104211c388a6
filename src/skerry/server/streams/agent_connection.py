"""The server's own connection to an agent, after the greeting, which carries a client's frames."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
from anyio.abc import ByteStream

from skerry.core import Channel, ConnectionLost, Corrupted, HelloReader, Provider, hello_frame, raw_socket
from skerry.wire import FrameError, Hello

READ_SIZE = 256 * 1024
GREETING_TIMEOUT = 30.0


class Connection(Protocol):
    """Bytes to and from an agent. Each raises ConnectionLost when it is broken."""

    async def receive(self) -> bytes:
        """Returns b"" when the agent has closed it."""

    async def send(self, data: bytes | memoryview) -> None: ...

    tap: Callable[[bytes], bool] | None
    """Gets what comes while `receive` waits, in its place; False: `receive` returns it."""

    def send_now(self, data: bytes) -> bool:
        """Send at most 4 KiB. False: they cannot leave at once."""

    def rest(self) -> None:
        """Leave the stream alone, until the next `receive`."""


@asynccontextmanager
async def open_agent(provider: Provider, sandbox_id: str) -> AsyncIterator[tuple[Hello, Connection]]:
    """A new connection to the sandbox's agent, and the agent's greeting.

    Raises SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost, Corrupted.
    """
    channel = await provider.dial(sandbox_id)
    connection = _connection(channel.stream)
    try:
        with anyio.move_on_after(GREETING_TIMEOUT) as scope:
            hello = channel.greeting or await _greet(channel, connection)
        if scope.cancelled_caught:
            raise ConnectionLost(f"the agent of sandbox {sandbox_id} did not answer")
        yield hello, connection
    finally:
        connection.rest()
        with anyio.CancelScope(shield=True):
            await channel.stream.aclose()


async def _greet(channel: Channel, connection: Connection) -> Hello:
    await connection.send(hello_frame(channel.token))
    reader = HelloReader()
    while data := await connection.receive():
        if reader.feed(data):
            raise Corrupted("the agent sent more than its greeting before it was asked")
        if reader.hello is not None:
            return reader.hello
    raise ConnectionLost("the agent closed the connection instead of a greeting")


def _connection(stream: ByteStream) -> Connection:
    """The fastest way: reads and writes a socket without a layer in between."""
    raw = raw_socket(stream)
    return _Streamed(stream) if raw is None else _Raw(raw)


class _Raw:
    """Watches the socket as long as the next `receive` comes in time: to begin and end that for each key is slow."""

    def __init__(self, raw: socket.socket) -> None:
        self._socket, self._loop = raw, asyncio.get_running_loop()
        self.tap: Callable[[bytes], bool] | None = None
        self._watched = False
        self._received: asyncio.Future[bytes] | None = None

    async def receive(self) -> bytes:
        self._received = self._loop.create_future()
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._socket, self._readable)
        try:
            return await self._received
        except OSError as error:
            raise ConnectionLost(f"the connection to the agent broke: {error}") from error

    def _readable(self) -> None:
        if self._received is None or self._received.done():
            self.rest()
            return
        try:
            data = self._socket.recv(READ_SIZE)
            if not data or self.tap is None or not self.tap(data):
                self._received.set_result(data)
        except BlockingIOError:
            pass
        except (OSError, FrameError) as error:
            self._received.set_exception(error)

    def rest(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._socket)

    def send_now(self, data: bytes) -> bool:
        try:
            return self._socket.send(data) == len(data)  # so few go as a whole or not at all
        except OSError:
            return False

    async def send(self, data: bytes | memoryview) -> None:
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise ConnectionLost(f"the connection to the agent broke: {error}") from error


class _Streamed:
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.tap: Callable[[bytes], bool] | None = None

    def send_now(self, data: bytes) -> bool:
        return False

    async def receive(self) -> bytes:
        try:
            return await self._stream.receive(READ_SIZE)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise ConnectionLost(f"the connection to the agent broke: {error}") from error

    async def send(self, data: bytes | memoryview) -> None:
        try:
            await self._stream.send(bytes(data))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise ConnectionLost(f"the connection to the agent broke: {error}") from error

    def rest(self) -> None:
        pass
