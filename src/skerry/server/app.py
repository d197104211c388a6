"""The application: all routers, the error handlers, and the background jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from skerry.core import CONTENT_TYPE, Provider, SkerryError
from skerry.server.access.identity import cookie_name
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
        title="Skerry",
        version=version("skerry"),
        summary="Isolated sandboxes over HTTP.",
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
    app.state.context = context
    app.add_middleware(Front, context=context)
    for router in ROUTERS:
        router.mount(app)
    app.router.redirect_slashes = False
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
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


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes, openapi_version="3.1.0"
        )
        parts = document.setdefault("components", {})
        parts.setdefault("schemas", {})["Problem"] = problems.Problem.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        parts["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "An API key or a sandbox's token."},
            "session": {"type": "apiKey", "in": "cookie", "name": cookie_name(app.state.context.settings)},
        }
        for path in document["paths"].values():  # what pydantic refuses is answered with a problem of status 400
            for operation in path.values():
                answers = operation.get("responses", {})
                if CONTENT_TYPE not in answers.get("422", {}).get("content", {}):
                    answers.pop("422", None)
                for answer in answers.values():
                    for content in answer.get("content", {}).values():
                        if "$ref" in content.get(
                            "schema", {}
                        ):  # FastAPI describes every answer that is not a JSONResponse as text
                            content["schema"].pop("type", None)
        for name in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
