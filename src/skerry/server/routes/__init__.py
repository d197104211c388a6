"""The routers that there are, in the order in which paths are compared."""

from skerry.server.routes import layers, provider, sandboxes, system
from skerry.server.routing import Routes
from skerry.server.streams import gateway, process, terminal

ROUTERS: tuple[Routes, ...] = (
    system.router,
    sandboxes.router,
    provider.router,
    layers.router,
    gateway.router,
    terminal.router,
    process.router,
)
