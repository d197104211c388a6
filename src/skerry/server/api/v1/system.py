"""The server's health, metrics and description."""

from __future__ import annotations

from importlib.metadata import version

from fastapi.responses import PlainTextResponse

from skerry.core import capabilities
from skerry.server.context import Ctx
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer

router = Routes("server")


class ServerHealth(Answer):
    status: str
    """`ok`, or `stopping`."""


class ServerInfo(Answer):
    version: str
    """The version of Skerry."""
    provider: str
    """The name of the provider behind it."""
    capabilities: list[str]
    """What the provider can do beyond the basics."""
    url: str
    """The server's address."""


@router.get("/health")
async def health(context: Ctx) -> ServerHealth:
    """Answer as long as the server can serve."""
    return ServerHealth(status="stopping" if context.stopping.is_set() else "ok")


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: Ctx) -> PlainTextResponse:
    """Get counters and gauges for Prometheus."""
    gauges = {"sandboxes": float(len(context.store.accounts.all_owned("sandbox")))}
    return PlainTextResponse(context.metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/server")
async def show(context: Ctx) -> ServerInfo:
    """Get what this server is and can do."""
    return ServerInfo(
        version=version("skerry"),
        provider=context.providers.default.name,
        capabilities=sorted(capabilities(context.providers.default)),
        url=context.settings.url,
    )
