"""What every request passes first: an id, the Host check, the actor, the rate limit; and its log and metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import Counter

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from skerry.core import InternalError, ProviderUnavailable, RateLimited, SkerryError
from skerry.server.access.identity import check_host, identify
from skerry.server.context import Context
from skerry.server.web.problems import answer, refuse

log = logging.getLogger("skerry.server")
access = logging.getLogger("skerry.server.access")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


class Front:
    """The outermost part of the application. Every error below becomes a problem document here."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        given = connection.headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        exchange = _Exchange(scope, send, request_id, self._context.metrics.bytes)
        kind = "sockets" if scope["type"] == "websocket" else "requests"
        self._context.metrics.open[kind] += 1
        try:
            await self._pass(connection, exchange, receive)
        except SkerryError as error:
            await self._refuse(exchange, receive, error)
        except ClientDisconnect:
            pass  # nobody waits for the answer
        except asyncio.CancelledError:
            if not self._context.stopping.is_set():
                raise
            end = ProviderUnavailable(
                "the server stopped before this was done", hint="retry, and check whether the operation took effect"
            )
            await self._refuse(exchange, receive, end)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id, "path": scope["path"]})
            failure = InternalError("the server failed to do this", request_id=request_id, hint="its log says why")
            await self._refuse(exchange, receive, failure)
        finally:
            self._context.metrics.open[kind] -= 1
            exchange.finish(self._context)

    async def _pass(self, connection: HTTPConnection, exchange: _Exchange, receive: Receive) -> None:
        context, scope = self._context, connection.scope
        check_host(connection, context.settings)
        actor = await identify(connection, context.store, context.settings, context.tickets, exchange.request_id)
        exchange.actor = actor.name
        scope["state"] = {**scope.get("state", {}), "actor": actor}
        if wait := context.requests.take(actor.id):
            raise RateLimited(f"too many requests from {actor.name}", retry_after=wait)
        under_way = context.under_way[scope["type"]]
        if not under_way.enter(actor.id):
            raise RateLimited(
                f"{actor.name} has too many requests running at once",
                retry_after=1.0,
                hint="wait until some have ended",
            )
        try:
            await self._app(scope, exchange.counted(receive), exchange.send)
        finally:
            under_way.leave(actor.id)

    async def _refuse(self, exchange: _Exchange, receive: Receive, error: SkerryError) -> None:
        exchange.code = error.code
        if exchange.status:
            return  # an answer has already begun: it can only be cut
        if exchange.scope["type"] == "websocket":
            await refuse(WebSocket(exchange.scope, receive, exchange.send), error)
        else:
            await answer(error)(exchange.scope, receive, exchange.send)


class _Exchange:
    """One request or socket, and its outcome."""

    def __init__(self, scope: Scope, send: Send, request_id: str, bytes: Counter[str]) -> None:
        self.scope, self._send, self.request_id, self._bytes = scope, send, request_id, bytes
        self.actor = "anonymous"
        self.status = 0
        self.code: str | None = None
        """Of the error that it ended with."""
        self._began = time.perf_counter()

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in _HEADERS if name not in names]
            headers.append((b"x-request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
        elif message["type"] in ("websocket.accept", "websocket.close"):
            self.status = self.status or (101 if message["type"] == "websocket.accept" else 403)
        else:
            self._bytes["sent"] += _size(message)
        await self._send(message)

    def counted(self, receive: Receive) -> Receive:
        async def counting() -> Message:
            message = await receive()
            self._bytes["received"] += _size(message)
            return message

        return counting

    def finish(self, context: Context) -> None:
        route = self.scope.get("route")
        path = getattr(route, "path", "unknown")
        method = "WS" if self.scope["type"] == "websocket" else self.scope["method"]
        seconds = time.perf_counter() - self._began
        if method == "WS":
            context.metrics.socket(path, self.status)
        else:
            context.metrics.request(method, path, self.status, seconds)
        if code := self.code or self.scope.get("state", {}).get("outcome"):
            context.metrics.failures[code] += 1
        fields = {
            "request_id": self.request_id,
            "method": method,
            "path": self.scope["path"],
            "status": self.status,
            "duration": round(seconds, 6),
            "actor": self.actor,
            "address": (self.scope.get("client") or ("",))[0],
        }
        access.info("%s %s %s", method, self.scope["path"], self.status, extra=fields)


def _size(message: Message) -> int:
    """Bytes that a message carries for a caller or from one."""
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")
