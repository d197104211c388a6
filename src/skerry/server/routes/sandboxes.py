"""Sandboxes: made, listed, looked at, destroyed."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import Header, Query
from pydantic import BaseModel, Field

from skerry.core.models import SandboxInfo, State
from skerry.sdk import AsyncSandbox
from skerry.sdk.listing import select
from skerry.server import naming
from skerry.server.context import Ctx, InProject, Sandbox, Who
from skerry.server.naming import PROJECT_LABEL
from skerry.server.routing import ProjectQuery, Routes
from skerry.server.store import Project

router = Routes("sandboxes")


class SandboxModel(BaseModel):
    id: str
    name: str | None
    project: str | None
    state: State
    template: str
    created_at: float
    expires_at: float | None
    metadata: dict[str, str]
    labels: dict[str, str]


class SandboxPageModel(BaseModel):
    items: list[SandboxModel]
    cursor: str | None


class CreateSandbox(BaseModel):
    name: str | None = None
    template: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    timeout: float | None = None


def model(project: Project | None, info: SandboxInfo) -> SandboxModel:
    fields: dict[str, Any] = dataclasses.asdict(naming.outer_sandbox(project, info))
    return SandboxModel(**fields, project=None if project is None else project.id)


@router.get("/v1/sandboxes")
async def list_(
    context: Ctx,
    who: Who,
    project: ProjectQuery = None,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> SandboxPageModel:
    """Those of your projects, oldest first."""
    projects = {item.id: item for item in context.projects(who, project)}
    unclaimed = context.sees_unclaimed(who, project)
    seen = [
        info
        for info in await context.provider.list()
        if info.labels.get(PROJECT_LABEL, "") in projects or (unclaimed and PROJECT_LABEL not in info.labels)
    ]
    page = select(seen, state=state, metadata=None, labels=None, limit=limit, cursor=cursor)
    items = [model(projects.get(info.labels.get(PROJECT_LABEL, "")), info) for info in page]
    return SandboxPageModel(items=items, cursor=page.cursor)


@router.post("/v1/sandboxes", status_code=201)
async def create(
    context: Ctx, project: InProject, body: CreateSandbox, idempotency_key: Annotated[str | None, Header()] = None
) -> SandboxModel:
    """Make one that is ready for commands."""
    sandbox = await AsyncSandbox.create(
        context.provider,
        name=None if body.name is None else naming.inner(project, body.name),
        template=body.template,
        env=body.env,
        metadata=body.metadata,
        labels=naming.labels(project, body.labels),
        timeout=body.timeout,
        idempotency_key=naming.inner_key(project, idempotency_key),
    )
    await context.sandboxes.adopt(sandbox, project)
    return model(project, await sandbox.info())


@router.get("/v1/sandboxes/{sandbox}")
async def show(sandbox: Sandbox) -> SandboxModel:
    return model(sandbox.project, await sandbox.directory.provider.get(sandbox.id))


@router.delete("/v1/sandboxes/{sandbox}", status_code=204)
async def destroy(context: Ctx, sandbox: Sandbox) -> None:
    """End it and remove everything of it."""
    await (await sandbox.use()).destroy()
    await context.sandboxes.forget([sandbox.id])
