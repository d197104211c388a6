"""uvicorn's HTTP connections, with limits that uvicorn lacks.

They limit the time and the size of a request's head, and the connections of one address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from typing import Any, cast

from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from skerry.server.access.rate_limits import Counts, party

MAX_HEAD = 64 << 10
SMALL, FEW = 4096, 16
"""Bytes of a message, and messages that wait."""

_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000),
)
"""Keepalive closes the connection of a client whose machine is gone."""


def bounded_protocol(
    header_timeout: float, *, per_address: int, proxies: Collection[str] = ()
) -> type[HttpToolsProtocol]:
    """A protocol that ends a connection whose request's head takes too long or is too large.

    It accepts `per_address` connections from one address, unless that is one of `proxies`. A connection that has become
    a WebSocket counts for its user instead.
    """
    counts, exempt = Counts(per_address), _TrustedHosts(list(proxies))

    class Bounded(HttpToolsProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._patience: asyncio.TimerHandle | None = None
            self._head_size = 0
            self._counted: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()
            address = self.client[0] if self.client else ""
            if address and address not in exempt:
                if not counts.enter(party(address)):
                    self._refuse(b"429 Too Many Requests")
                    return
                self._counted = party(address)
            if (connection := transport.get_extra_info("socket")) is not None:
                for option in _SOCKET_OPTIONS:
                    connection.setsockopt(*option)

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_head()
            self._leave()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self) -> None:
            self._leave()
            super().handle_websocket_upgrade()

        def _leave(self) -> None:
            if self._counted is not None:
                counts.leave(self._counted)
                self._counted = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._patience is not None:  # the head is not complete yet
                self._head_size += len(data)
                if self._head_size > MAX_HEAD:
                    self._refuse(b"431 Request Header Fields Too Large")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._patience is None:  # a further request on this connection
                self._await_head()

        def on_headers_complete(self) -> None:
            self._have_head()
            super().on_headers_complete()

        def _await_head(self) -> None:
            self._head_size = 0
            self._patience = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def _have_head(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _refuse(self, status: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                self.transport.close()

    return Bounded


class QuickSockets(WebSocketsSansIOProtocol):
    """WebSockets that are quick with small messages. A scope has this as its extension `skerry.quick`."""

    tap: Callable[[bytes], bool] | None = None
    """Gets each small binary message that nothing waits before; False: the message goes to the application."""

    async def run_asgi(self) -> None:
        cast("dict[str, object]", self.scope["extensions"])["skerry.quick"] = self
        await super().run_asgi()

    @property
    def writes(self) -> bool:
        """Whether `send_now` may be called: the socket is open, and what was written before has left, or almost."""
        return self.conn.state is State.OPEN and not self.disconnected and self.writable.is_set()

    def send_now(self, data: bytes) -> None:
        """Send a binary message."""
        self.conn.send_binary(data)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def send_receive_event_to_app(self) -> None:
        """Pause reading only for large messages or many: to pause and resume for each key takes longer than the key."""
        small = not self.read_paused and sum(map(len, self.frames)) <= SMALL
        direct = small and self.queue.empty() and self.curr_msg_data_type == "bytes"
        if direct and self.tap is not None and self.tap(b"".join(self.frames)):
            self.frames = []
            return
        patient = small and self.queue.qsize() < FEW
        if patient:
            self.read_paused = True  # as if: then the base class does not pause
        super().send_receive_event_to_app()
        if patient:
            self.read_paused = False
