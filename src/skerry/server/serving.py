"""The running server: uvicorn with our settings, and an orderly end even with streams open."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI

from skerry.server.context import Context
from skerry.server.settings import Settings

log = logging.getLogger("skerry.server")


def config_of(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # terminals on a network that is faster than zlib
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
    """Tells its streams to end before it waits for requests."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(config_of(app, settings))
        self.context: Context = app.state.context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.stopping.set()
        await super().shutdown(sockets)
