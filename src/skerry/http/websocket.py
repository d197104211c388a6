"""A WebSocket whose binary messages are a byte stream; bytes go straight between the transport and callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from skerry.core import ConnectionLost, Corrupted, Ends, Pipe, PipeStream, SkerryError
from skerry.http.exchange import KEEPALIVE, failure, tls
from skerry.http.login import Login

CONNECT_TIMEOUT = 15.0
MAX_MESSAGE = 8 << 20
SEND_SIZE = 256 * 1024
"""Of one message: a larger one would hold up those behind it at the server."""
CLOSE_TIMEOUT = 2.0
_PAUSE_ABOVE = 1 << 20
_DATA = (Opcode.BINARY, Opcode.CONT)


async def connect_websocket(login: Login, path: str, *, subprotocol: str | None = None) -> WebSocketStream:
    """An open WebSocket to the server. Raises the error of a refused upgrade, ConnectionLost."""
    secure = tls(login)
    context = secure if isinstance(secure, ssl.SSLContext) else None
    uri = parse_uri("ws" + login.url.removeprefix("http") + path)
    headers = {"User-Agent": "skerry"}
    if login.key:
        headers["Authorization"] = f"Bearer {login.key}"
    loop = asyncio.get_running_loop()
    stream = WebSocketStream(uri, headers, subprotocol)
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            await loop.create_connection(lambda: stream.protocol, uri.host, uri.port, ssl=context)
            await stream.protocol.opened
    except TimeoutError:
        stream.protocol.abort()
        raise ConnectionLost(f"{login.url} did not open a WebSocket in time") from None
    except SkerryError:  # before OSError, which some of them are
        stream.protocol.abort()
        raise
    except OSError as error:
        stream.protocol.abort()
        raise ConnectionLost(f"cannot reach {login.url}: {error}") from error
    except BaseException:
        stream.protocol.abort()
        raise
    return stream


class WebSocketStream(PipeStream):
    """Made by `connect`. Text messages are ignored."""

    def __init__(self, uri: Any, headers: Mapping[str, str], subprotocol: str | None) -> None:
        self.protocol = _Protocol(uri, headers, subprotocol)

    @property
    def close_code(self) -> int | None:
        """What the other side closed with; None: it did not."""
        return self.protocol.websocket.close_code

    @property
    def close_reason(self) -> str:
        return self.protocol.websocket.close_reason or ""

    def into_pipe(self, ends: Ends) -> Pipe:
        self.protocol.hand_over(ends)
        return self.protocol

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self.protocol.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self.protocol.send(item)

    async def send_eof(self) -> None:
        raise NotImplementedError("a WebSocket is closed as a whole")

    async def aclose(self) -> None:
        self.protocol.close()
        await self.protocol.wait_closed()


class _Protocol(asyncio.Protocol):
    """The transport's end, and the pipe."""

    def __init__(self, uri: Any, headers: Mapping[str, str], subprotocol: str | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.websocket = ClientProtocol(
            uri, subprotocols=[Subprotocol(subprotocol)] if subprotocol else None, max_size=MAX_MESSAGE
        )
        self._headers = headers
        self._transport: asyncio.Transport | None = None
        self._ends: Ends | None = None
        self._inbox = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._error: Exception | None = None
        self._ended = self._closing = self._paused = False

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # `resume_writing` means that everything has left
        for option in KEEPALIVE:
            transport.get_extra_info("socket").setsockopt(*option)
        request = self.websocket.connect()
        request.headers.update(self._headers)
        self.websocket.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.websocket.receive_data(data)
        for event in self.websocket.events_received():
            if isinstance(event, Response):
                self._answered()
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self._deliver(event.data)
        self._flush()
        if self.websocket.close_expected() and self._transport is not None:
            self._transport.close()

    def eof_received(self) -> None:
        self.websocket.receive_eof()  # `connection_lost` says the rest

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        self._end(exc)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._ends is not None and not self._closing:
            self._ends.drained()

    # -- inside

    def _answered(self) -> None:
        error = self.websocket.handshake_exc
        if self.opened.done():
            return
        if error is None:
            self.opened.set_result(None)
        elif isinstance(error, InvalidStatus):
            response = error.response
            content_type = response.headers.get("Content-Type", "")
            self.opened.set_exception(failure(response.status_code, content_type, bytes(response.body or b"")))
        else:
            self.opened.set_exception(Corrupted(f"the server opened no WebSocket: {error}"))

    def _deliver(self, data: bytes | bytearray | memoryview) -> None:
        if self._ends is not None:
            if not self._closing:
                self._ends.received(bytes(data) if isinstance(data, bytearray) else data)
            return
        self._inbox += data
        self._arrived.set()
        if len(self._inbox) > _PAUSE_ABOVE and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    def _end(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(
                ConnectionLost(f"the server ended the connection: {error or 'without an answer'}")
            )
        if self._ended:
            return
        self._ended = True
        if error is None and self.websocket.close_code not in (None, 1000, 1001, 1005, 1006):
            why = f"{self.websocket.close_code} {self.websocket.close_reason or ''}".strip()
            error = ConnectionError(f"the server closed it: {why}")
        self._error = error
        self._arrived.set()
        self._writable.set()
        if self._ends is not None and not self._closing:
            self._ends.ended(error)

    def _flush(self) -> None:
        if self._transport is not None and (data := self.websocket.data_to_send()):
            self._transport.write(b"".join(data))

    def _send(self, data: bytes) -> None:
        if self._ended or self._closing:
            return
        try:
            if len(data) <= SEND_SIZE:
                self.websocket.send_binary(data)
            else:
                view = memoryview(data)
                for at in range(0, len(view), SEND_SIZE):
                    self.websocket.send_binary(bytes(view[at : at + SEND_SIZE]))
        except WebSocketException as error:  # the close has come already; `ended` says so in a moment
            self._error = error
            return
        self._flush()

    # -- the pipe

    def hand_over(self, ends: Ends) -> None:
        self._ends = ends
        self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        data, self._inbox = bytes(self._inbox), bytearray()
        if self._paused and self._transport is not None:
            self._transport.resume_reading()
        if self._ends is None or self._closing:
            return
        if data:
            self._ends.received(data)
        if self._ended and not self._closing:
            self._ends.ended(self._error)

    @property
    def pending(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._send(b"".join(parts))

    def keep(self) -> None:
        pass

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._loop.is_closed():
            self.abort()
            return
        if not self._ended and self._transport is not None and self.opened.done():
            try:
                self.websocket.send_close(1000)
                self._flush()
            except WebSocketException:
                pass
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is None:
            return
        if self._loop.is_closed():
            # Nobody runs the transport any more: the other side learns it, the rest goes with the object.
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        else:
            self._transport.abort()

    async def wait_closed(self) -> None:
        if self._transport is None or self._loop.is_closed():
            return
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await asyncio.shield(self._lost)
            return
        self.abort()

    # -- the stream

    async def receive(self, max_bytes: int) -> bytes:
        while not self._inbox:
            if self._ended:
                if self._error is not None:
                    raise anyio.BrokenResourceError from self._error
                raise anyio.EndOfStream
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._inbox[:max_bytes])
        del self._inbox[:max_bytes]
        if self._paused and len(self._inbox) < _PAUSE_ABOVE and self._transport is not None:
            self._transport.resume_reading()
            self._paused = False
        return data

    async def send(self, data: bytes) -> None:
        if self._ended or self._closing:
            raise anyio.BrokenResourceError
        self._send(data)
        await self._writable.wait()
