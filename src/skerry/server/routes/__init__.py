"""The routers that there are, in the order in which paths are compared."""

from skerry.server.routes import (
    audit,
    events,
    keys,
    layers,
    projects,
    provider,
    sandboxes,
    sessions,
    system,
    users,
    webhooks,
)
from skerry.server.routing import Routes
from skerry.server.streams import gateway, process, terminal

ROUTERS: tuple[Routes, ...] = (
    system.router,
    sessions.router,
    users.router,
    keys.router,
    projects.router,
    audit.router,
    webhooks.router,
    events.router,
    sandboxes.router,
    provider.router,
    layers.router,
    gateway.router,
    terminal.router,
    process.router,
)
