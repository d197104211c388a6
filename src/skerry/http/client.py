"""The low-level clients of a Skerry server: one request a call, typed errors; blocking and async."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2

from skerry.core import SkerryError
from skerry.http import exchange
from skerry.http.exchange import Attempts, Request, connection_lost, failure
from skerry.http.login import Login, find_login


class Client:
    """Blocking; may be shared by threads. `with` closes its connections."""

    def __init__(self, login: Login | None = None) -> None:
        """Without `login`, the environment and `skerry login` decide. Raises Unauthenticated, InvalidArgument."""
        self.login = login or find_login()
        self.known = False
        """Whether the server has ever answered."""
        transport = httpx2.HTTPTransport(**exchange.transport_settings(self.login))
        self._http = httpx2.Client(transport=transport, **exchange.client_settings(self.login))

    def send(self, request: Request) -> Any:
        """The answer's JSON. Raises the same errors as a local call, ConnectionLost, Timeout, InternalError."""
        attempts = Attempts(request, patient=self.known)
        while True:
            try:
                response = self._http.request(**request.arguments())
            except httpx2.TransportError as error:
                if (pause := attempts.pause(error)) is None:
                    raise connection_lost(error, self.login) from error
                time.sleep(pause)
                continue
            self.known = True
            return attempts.answer(response)

    @contextmanager
    def stream(self, request: Request, *, content: Iterator[bytes] | None = None) -> Iterator[httpx2.Response]:
        """A response whose body is read as it comes; `content` is sent as it comes. Raises as `send`."""
        try:
            with self._http.stream(**request.arguments(content)) as response:
                self.known = True
                if not response.is_success:
                    raise failure(response.status_code, response.headers.get("content-type", ""), response.read())
                yield response
        except httpx2.TransportError as error:
            raise connection_lost(error, self.login) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """As `Client`; belongs to the event loop it is used in. `async with` closes its connections."""

    def __init__(self, login: Login | None = None) -> None:
        self.login = login or find_login()
        self.known = False
        transport = httpx2.AsyncHTTPTransport(**exchange.transport_settings(self.login))
        self._http = httpx2.AsyncClient(transport=transport, **exchange.client_settings(self.login))

    async def send(self, request: Request) -> Any:
        """As `Client.send`."""
        attempts = Attempts(request, patient=self.known)
        while True:
            try:
                response = await self._http.request(**request.arguments())
            except httpx2.TransportError as error:
                if (pause := attempts.pause(error)) is None:
                    raise connection_lost(error, self.login) from error
                await anyio.sleep(pause)
                continue
            self.known = True
            return attempts.answer(response)

    @asynccontextmanager
    async def stream(
        self, request: Request, *, content: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """As `Client.stream`."""
        try:
            async with self._http.stream(**request.arguments(content)) as response:
                self.known = True
                if not response.is_success:
                    problem: SkerryError = failure(
                        response.status_code, response.headers.get("content-type", ""), await response.aread()
                    )
                    raise problem
                yield response
        except httpx2.TransportError as error:
            raise connection_lost(error, self.login) from error

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
