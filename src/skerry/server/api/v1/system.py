"""The server's health, metrics and description."""

from __future__ import annotations

from importlib.metadata import version

from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from skerry.core import capabilities
from skerry.server.context import Ctx
from skerry.server.web.guard import Routes

router = Routes("server")


class Health(BaseModel):
    status: str


class ServerInfo(BaseModel):
    version: str
    provider: str
    capabilities: list[str]
    url: str


@router.get("/health", head=True)
async def health(context: Ctx) -> Health:
    """Answer as long as the server can serve."""
    return Health(status="stopping" if context.stopping.is_set() else "ok")


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
