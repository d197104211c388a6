"""The routers that there are, in the order in which paths are compared."""

from skerry.server.routes import sandboxes, system
from skerry.server.routing import Routes

ROUTERS: tuple[Routes, ...] = (
    system.router,
    sandboxes.router,
)
