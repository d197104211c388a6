"""Runs the server: uvicorn with our settings, and an orderly shutdown even with open streams."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import ipaddress
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from skerry.core import InvalidArgument, ProviderUnavailable, replace_file
from skerry.server.access.secrets import digest
from skerry.server.app import build_app
from skerry.server.context import Context
from skerry.server.jobs.jobs import go_on
from skerry.server.run import instance
from skerry.server.run.certificates import Certificates, check_pair, follow, local_certificates
from skerry.server.run.uvicorn_protocol import QuickSockets, bounded_protocol
from skerry.server.settings import Settings
from skerry.server.store import User

log = logging.getLogger("skerry.server")

FIRST_LINK = 3600.0
FILES = 65536
"""How many files and connections the process may have open, if the machine allows it."""
SWITCH_EVERY = 0.0005
"""Seconds after which a busy event loop lets a provider's thread run: a look at a sandbox needs several turns."""
LAST_RESORT = 10.0
"""Seconds after `shutdown_timeout` when the process ends itself, even if work is not finished."""


def config_of(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=bounded_protocol(
            settings.header_timeout,
            per_address=settings.max_connections_per_address,
            proxies=settings.trusted_proxies,
        ),
        ws=QuickSockets,
        ws_per_message_deflate=False,  # for terminals, the network is faster than zlib
        ws_max_size=4 << 20,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout)),
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )


class Server(uvicorn.Server):
    """Tells its streams to end before it waits for requests, and ends in bounded time."""

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        on_started: Callable[[], Awaitable[None]] | None = None,
        renew: Callable[[], object] | None = None,
    ) -> None:
        """`renew` is called from time to time, for certificates that are ours."""
        super().__init__(config_of(app, settings))
        self.context: Context = app.state.context
        self._on_started = on_started
        self._renew = renew
        self._following: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(SWITCH_EVERY)
        await super().startup(sockets)
        settings = self.context.settings
        if self.started and self.config.ssl is not None:
            cert, key = Path(settings.tls_cert), Path(settings.tls_key)
            work = partial(follow, self.config.ssl, cert, key, self._renew)
            self._following = asyncio.create_task(go_on("certificates", work))
        if self.started and self._on_started is not None:
            await self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._following is not None:
            self._following.cancel()
        self.context.stopping.set()
        self.context.events.wake()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal ends the server in order, the second at once; neither is raised again."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._told, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _told(self, number: int) -> None:
        if self.should_exit:
            self.force_exit = True
            return
        log.info("received a signal, shutting down", extra={"signal": signal.Signals(number).name})
        self.should_exit = True
        limit = self.context.settings.shutdown_timeout + LAST_RESORT
        last = threading.Timer(limit, os._exit, (1,))  # a thread in a system call would keep Python from ending
        last.daemon = True
        last.start()


@dataclass(frozen=True, slots=True)
class Started:
    """What a user who has just started a server wants to know."""

    url: str
    admin: str
    """The name of the first administrator."""
    link: str | None
    """Signs the first administrator in, once; None: nobody asked for it."""
    key_file: Path
    certificates: Certificates | None


def listen(settings: Settings) -> tuple[socket.socket, Settings]:
    """A listening socket, and the settings with its port. Raises ProviderUnavailable, InvalidArgument."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        taken = "another program uses the port; choose another one with --port"
        raise ProviderUnavailable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint=taken if error.errno == errno.EADDRINUSE else "--host must be an address of this machine",
        ) from error
    except OverflowError:
        raise InvalidArgument(f"{settings.port} is not a port") from None
    return listener, dataclasses.replace(settings, port=listener.getsockname()[1])


def run_server(settings: Settings, on_ready: Callable[[Started], None], *, link: bool) -> None:
    """Serve until a signal comes. `on_ready` is called when the server answers, with a sign-in link if asked for.

    Raises Conflict while another server runs for this home, Corrupted for a damaged database, InvalidArgument for
    certificates that cannot be used, ProviderUnavailable.
    """
    import uvloop

    _raise_limit()
    with instance.claimed(settings.directory):
        certificates, renew = None, None
        if settings.tls and not settings.tls_cert:
            renew = partial(local_certificates, settings.directory / "tls", settings.hosts())
            certificates = renew()
            cert, key = str(certificates.cert), str(certificates.key)
            settings = dataclasses.replace(settings, tls_cert=cert, tls_key=key)
        if settings.tls_cert:
            check_pair(settings.tls_cert, settings.tls_key)
        elif not settings.url.startswith("https:") and not _is_loopback(settings.host):
            log.warning("plain HTTP on %s: others on the network can read keys and passwords; use --tls", settings.host)
        listener, settings = listen(settings)
        app = build_app(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(app, listener, certificates, renew, on_ready, link))


def _raise_limit() -> None:
    """A process begins with 1,024 files on most machines, which is less than `max_connections`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(
    app: FastAPI,
    listener: socket.socket,
    certificates: Certificates | None,
    renew: Callable[[], object] | None,
    on_ready: Callable[[Started], None],
    link: bool,
) -> None:
    settings: Settings = app.state.context.settings

    async def started() -> None:
        admin = await first_admin(app.state.context)
        text = await first_link(app.state.context) if link else None
        ca_file = None if certificates is None else str(certificates.ca)
        on_ready(Started(settings.url, admin.name, text, settings.directory / "admin.key", certificates))
        instance.announce(settings.directory, settings.url, ca_file)

    try:
        await Server(app, settings, started, renew).serve([listener])
    except SystemExit:  # how uvicorn reports a failed start; the log has the reason
        raise ProviderUnavailable("the server could not start", hint="see its log") from None


async def first_admin(context: Context) -> User:
    """The first administrator, made if there is none, with the key for this machine."""
    store, directory = context.store, context.settings.directory
    found = [user for user in store.accounts.users() if user.admin and not user.disabled]
    found = found or [await store.users.add(instance.ADMIN, admin=True)]
    first = next((user for user in found if user.name == instance.ADMIN), found[0])
    stored = instance.admin_key(directory)
    key = None if stored is None else store.accounts.check_key(stored)
    if key is None or key.user_id not in {user.id for user in found}:
        _, text = await store.keys.add(first.id, f"this machine, {time.strftime('%Y-%m-%d')}")
        replace_file(directory / "admin.key", f"{text}\n".encode(), flush=True, several=True)
    return first


async def first_link(context: Context) -> str:
    """A link that signs the first administrator in."""
    text = secrets.token_urlsafe(32)
    first = await first_admin(context)
    await context.store.users.add_link(first.id, digest(text), lifetime=FIRST_LINK)
    return f"{context.settings.url}/sign-in#{text}"
