"""The audit log: who changed what, and what was refused."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import Query

from skerry.core import InvalidArgument
from skerry.server.context import Context, Ctx, InProject
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer

router = Routes("audit")

Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries to return.")]
Cursor = Annotated[str | None, Query(max_length=20, description="The `cursor` of the last answer.")]


class AuditModel(Answer):
    time: float
    """When."""
    actor: str
    """Who: `user:NAME`, `token:ID` or `anonymous`."""
    credential: str
    """By which credential: `session`, `key:ID` or `token:ID`."""
    action: str
    """The right that it needed."""
    operation: str
    """The method and the path, or another name of what was done."""
    target: str
    """What it was about."""
    project_id: str | None
    """The project that this belongs to; null: none."""
    outcome: str
    """`ok`, or the code of the error."""
    address: str
    """The client's address."""
    request_id: str
    """The id of the request."""


class AuditPage(Answer):
    items: list[AuditModel]
    """The entries, newest first."""
    cursor: str | None
    """What to pass as `cursor` for the next part; null: this is the end."""


@router.get("/v1/audit")
async def of_server(context: Ctx, limit: Limit = 100, cursor: Cursor = None) -> AuditPage:
    """List what was done and refused, newest first."""
    return await _page(context, None, limit, cursor)


@router.get("/v1/projects/{project}/audit")
async def of_project(context: Ctx, project: InProject, limit: Limit = 100, cursor: Cursor = None) -> AuditPage:
    """List what was done and refused in a project, newest first."""
    return await _page(context, project.id, limit, cursor)


async def _page(context: Context, project_id: str | None, limit: int, cursor: str | None) -> AuditPage:
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidArgument(f"{cursor!r} is not a cursor")
    found = await context.store.audit.before(
        None if cursor is None else int(cursor), project_id=project_id, limit=limit
    )
    items = [AuditModel(**dataclasses.asdict(entry)) for entry in found]
    return AuditPage(items=items, cursor=str(found[-1].seq) if len(found) == limit else None)
