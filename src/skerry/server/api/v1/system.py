"""The server's health, metrics and description."""

from __future__ import annotations

from importlib.metadata import version

from fastapi.responses import PlainTextResponse

from skerry.core import SkerryError, capabilities
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
    try:
        room = await context.providers.default.room()
    except SkerryError:  # the rest can still be told, and a provider that does not answer matters to its reader
        room = None
    text = context.metrics.text(context.events.states(), room)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/server")
async def show(context: Ctx) -> ServerInfo:
    """Get what this server is and can do."""
    return ServerInfo(
        version=version("skerry"),
        provider=context.providers.default.name,
        capabilities=sorted(capabilities(context.providers.default)),
        url=context.settings.url,
    )
