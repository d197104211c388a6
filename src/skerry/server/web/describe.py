"""What the routes of sandboxes share: their description, and the sandbox they work with."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Response
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, Field, create_model

from skerry.core import PermissionDenied, SandboxInfo
from skerry.sdk import AsyncSandbox
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import SLACK, Action
from skerry.server.context import Context, May, Sandbox
from skerry.server.projects.sandboxes import seconds_left
from skerry.server.store import Project
from skerry.server.web.models.mirror import mirrored, plain

SANDBOX = "/v1/sandboxes/{sandbox}"
BINARY = {"type": "string", "format": "binary"}


async def _box(may: May, sandbox: Sandbox) -> AsyncSandbox:
    """The sandbox, started when needed, unless the actor may only read."""
    return await sandbox.use(auto_start=Action.SANDBOX_WRITE in may)


def check_lifetime(context: Context, who: Actor, about: Subject, info: SandboxInfo, seconds: float) -> None:
    """An earlier end counts as destroying. Raises PermissionDenied for an actor who may not destroy the sandbox."""
    if seconds < seconds_left(info) - SLACK and not context.allows(who, Action.SANDBOX_DESTROY, about):
        raise PermissionDenied(
            f"{who.name} may not let this sandbox end sooner ({Action.SANDBOX_DESTROY})",
            hint="ask its maker or an owner of the project",
        )


Box = Annotated[AsyncSandbox, Depends(_box)]


def opens_sandbox(dependant: Dependant) -> bool:
    """Whether a handler gets a `Box`."""
    return dependant.call is _box or any(map(opens_sandbox, dependant.dependencies))


def op(
    summary: str,
    model: type[BaseModel] | None = None,
    *,
    status: int = 200,
    listed: bool = False,
    also: dict[str, str] | None = None,
    raw: str | None = None,
    sends: str | None = None,
    statuses: Mapping[int, str] | None = None,
    raises: Sequence[str] = (),
) -> dict[str, Any]:
    """The options of a route: its summary and its answer.

    `also` are other content types of the answer, with status 200, and what they hold; `raw` is the only one; `sends` is
    the content type of a request's body that is not JSON. `statuses` are others for a success. `raises` are the codes
    of errors that do not follow from the route's rule and what it takes: see `refusals`.
    """
    content: dict[str, Any] = {
        kind: {"schema": {"type": "string", "description": text}} for kind, text in (also or {}).items()
    }
    if raw is not None:
        content[raw] = {"schema": BINARY}
    found: dict[int | str, dict[str, Any]] = {
        each: {"description": text} | ({} if each == 304 else {"content": content})
        for each, text in (statuses or {}).items()
    }
    if content:
        found[200 if also else status] = {"content": content}
    options: dict[str, Any] = {"summary": summary, "status_code": status, "responses": found, "raises": raises}
    if model is not None:
        options["response_model"] = _page(model) if listed else model
    else:
        options |= {"response_model": None, "response_class": Response}
    if sends is not None:
        body = {"required": True, "content": {sends: {"schema": BINARY}}}
        options["openapi_extra"] = {"requestBody": body}
    return options


@functools.cache
def _page(model: type[BaseModel]) -> type[BaseModel]:
    """A part of a list; pass `cursor` to get the next part. It is null at the end."""
    fields: dict[str, Any] = {
        "items": (list[model], Field(description="This part of the list.")),  # type: ignore[valid-type]
        "cursor": (str | None, Field(description="What to pass for the next part; null: this is the last.")),
    }
    made: type[BaseModel] = create_model(f"{model.__name__}List", __doc__=_page.__doc__, **fields)
    return made


_PROJECT: Any = (str | None, Field(description="The id of its project; null: it belongs to none."))
SandboxModel: type[BaseModel] = create_model(
    "Sandbox", __base__=mirrored(SandboxInfo), __doc__=SandboxInfo.__doc__, project=_PROJECT
)


def shown(project: Project | None, info: SandboxInfo) -> dict[str, Any]:
    """A sandbox as users see it, with the project it belongs to."""
    return {**plain(info), "project": None if project is None else project.id}
