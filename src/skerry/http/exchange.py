"""One request and its answer, without any input or output: what both clients share."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import field
from typing import Any

import httpx2

from skerry._model import Model
from skerry.core import ConnectionLost, InternalError, SkerryError, Timeout, dump_json, from_problem, load_json
from skerry.http.login import Login

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
KEYED = frozenset({"/v1/sandboxes", "/v1/provider/sandboxes"})
"""Where the server looks at an Idempotency-Key: anywhere else it carries out a second request a second time."""
RETRY_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds after each attempt whose connection was refused or lost; what the last one raises counts."""
READ_TIMEOUT = 900.0
"""A verb answers when it is done, which may take a while: the first answer of a large restore, for example."""
MAX_PROBLEM = 8 << 20
KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""The client notices within a minute that a server's machine is gone, also in the middle of a long answer."""


class Request(Model):
    """What to ask. `json` becomes the body."""

    method: str
    path: str
    """From `/v1` on; its variable parts are quoted already."""
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = READ_TIMEOUT
    """Seconds until the next byte of the answer; None: however long it takes."""

    @property
    def repeatable(self) -> bool:
        """Whether it may be asked again when the answer was lost."""
        return self.method in IDEMPOTENT or ("Idempotency-Key" in self.headers and self.path in KEYED)

    def arguments(self, content: Iterator[bytes] | AsyncIterator[bytes] | None = None) -> dict[str, Any]:
        """Of an httpx2 client's `request` or `stream`; `content` is sent in place of `json`."""
        body = None if self.json is None else dump_json(self.json)
        kind = {} if self.json is None else {"Content-Type": "application/json"}
        return {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "content": body if content is None else content,
            "headers": {**self.headers, **kind},
            "timeout": httpx2.Timeout(self.timeout, connect=10.0, pool=None),
        }


def idempotent(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers with a new Idempotency-Key: a request that makes a sandbox may be repeated."""
    return {**(headers or {}), "Idempotency-Key": secrets.token_hex(16)}


def tls(login: Login) -> ssl.SSLContext | bool:
    """What verifies the server's certificate."""
    if not login.url.startswith("https:"):
        return True
    context = ssl.create_default_context()
    if login.ca_file is not None:
        context.load_verify_locations(login.ca_file)
    return context


def client_settings(login: Login) -> dict[str, Any]:
    """The arguments of an httpx2 client."""
    headers = {"Accept": "application/json", "User-Agent": "skerry"}
    if login.key:
        headers["Authorization"] = f"Bearer {login.key}"
    if login.project:
        headers["Skerry-Project"] = login.project
    return {
        "base_url": login.url,
        "headers": headers,
        "timeout": httpx2.Timeout(READ_TIMEOUT, connect=10.0, pool=None),
        "follow_redirects": False,  # a key is never carried elsewhere
        "trust_env": False,
    }


def transport_settings(login: Login) -> dict[str, Any]:
    limits = httpx2.Limits(max_connections=200, max_keepalive_connections=16, keepalive_expiry=4.0)
    return {"verify": tls(login), "limits": limits, "socket_options": KEEPALIVE, "trust_env": False}


def read_answer(response: httpx2.Response) -> Any:
    """The JSON of a good answer, None for an empty one. Raises the error that the answer stands for."""
    if response.is_success:
        return load_json(response.content) if response.content else None
    raise failure(response.status_code, response.headers.get("content-type", ""), response.content)


def failure(status: int, content_type: str, body: bytes) -> SkerryError:
    """The error of an answer that reports a failure."""
    if "json" in content_type and len(body) <= MAX_PROBLEM:
        try:
            problem = load_json(body)
            if isinstance(problem, dict):
                return from_problem(problem)
        except SkerryError:
            pass
    said = body[:200].decode("utf-8", "replace").strip()
    return InternalError(f"the server answered {status}" + (f": {said}" if said else ""))


def connection_lost(error: Exception, login: Login) -> SkerryError:
    """What a failed connection means."""
    if isinstance(error, httpx2.TimeoutException):
        return Timeout(f"{login.url} did not answer in time: {type(error).__name__}")
    return ConnectionLost(
        f"cannot reach {login.url}: {str(error) or type(error).__name__}",
        hint="check that the server runs and that SKERRY_URL is right",
    )


class Attempts:
    """Whether and when to ask again, and what the answer then means."""

    def __init__(self, request: Request, *, patient: bool) -> None:
        """`patient`: the server has answered before, so a refused connection means that it is starting again."""
        self._request, self._patient = request, patient
        self._pauses = iter(RETRY_PAUSES if patient else RETRY_PAUSES[:2])
        self._arrived = False
        """Whether an attempt may have been carried out though its answer was lost."""

    def pause(self, error: Exception) -> float | None:
        """Seconds to wait before the next attempt; None: there is no next attempt."""
        refused = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        connection_lost = isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError) and not refused
        self._arrived |= connection_lost
        retry = (refused and self._patient) or (connection_lost and self._request.repeatable)
        return next(self._pauses, None) if retry else None

    def answer(self, response: httpx2.Response) -> Any:
        """As `answer`. If a repeated removal finds nothing, the attempt before it has removed the thing."""
        try:
            return read_answer(response)
        except LookupError:
            if self._arrived and self._request.method == "DELETE":
                return None
            raise
