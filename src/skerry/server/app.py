"""The application: all routers, the error handlers, and the background jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException

from skerry.core import Provider, SkerryError
from skerry.server.api.v1 import ROUTERS
from skerry.server.context import Context
from skerry.server.jobs import jobs
from skerry.server.settings import Settings
from skerry.server.web import problems
from skerry.server.web.guard import check_complete
from skerry.server.web.middleware import Front


def build_app(settings: Settings, provider: Provider | None = None) -> FastAPI:
    """The application over an open database; `app.state.context` has its parts.

    Raises Corrupted for a damaged database, RuntimeError for a rule without a route.
    """
    check_complete({key for router in ROUTERS for key in router.keys})
    context = Context(settings, provider)
    app = FastAPI(
        lifespan=_lifespan,
        openapi_url=None,  # served by one of our routes, as everything is
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            SkerryError: problems.on_skerry_error,
            RequestValidationError: problems.on_invalid,
            WebSocketRequestValidationError: problems.on_invalid,
            HTTPException: problems.on_http_exception,
        },
    )
    app.state.context, app.state.documents = context, {}
    app.add_middleware(Front, context=context)
    for router in ROUTERS:
        router.mount(app)
    app.router.redirect_slashes = False
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    async with anyio.create_task_group() as tasks:
        await jobs.start(context, tasks)
        yield
        context.stopping.set()
        tasks.cancel_scope.cancel()
    with anyio.CancelScope(shield=True):
        await context.sandboxes.close()
        await context.store.close()
