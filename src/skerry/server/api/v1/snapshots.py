"""Snapshots of sandboxes, and restoring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, Field, create_model

from skerry.core import SnapshotInfo
from skerry.sdk import SnapshotNode, snapshot_trees
from skerry.server.context import Ctx, Sandbox, Snapshot, Who, note_made
from skerry.server.projects import names
from skerry.server.projects.create import usable_snapshot
from skerry.server.projects.slots import CHANGES
from skerry.server.web.describe import SANDBOX, Box, SandboxModel, op, shown
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.refusals import LIFE
from skerry.server.web.responses import while_there

router = Routes("snapshots", raises=LIFE)

Model = mirrored(SnapshotInfo)
_NODES: dict[str, Any] = {"items": (list[mirrored(SnapshotNode)], Field(description="The snapshots without a parent."))}  # type: ignore[misc]
Tree: type[BaseModel] = create_model(
    "SnapshotTree", __doc__="Snapshots without a parent, each with those taken after it.", **_NODES
)


@router.post(
    SANDBOX + "/snapshots",
    slots=CHANGES,
    **op("Take a snapshot of the files and variables of a sandbox", Model, status=201),
)
async def create(
    request: Request, context: Ctx, sandbox: Sandbox, box: Box, body: models.CreateSnapshot | None = None
) -> Response:
    """A running sandbox is frozen for a moment. The snapshot does not include secrets and volumes."""
    wanted = body or models.CreateSnapshot()
    name = wanted.name
    if name is not None and sandbox.project is not None:
        name = names.inner(sandbox.project, name)
    info = await while_there(request, box.snapshots.create(name, description=wanted.description))
    await context.holdings.note_snapshot(sandbox.project, sandbox.provider, info)
    note_made(request, "snapshot", info.id, names.outer(sandbox.project, info.name))
    return answer(names.outer_snapshot(sandbox.project, info), 201)


@router.get(SANDBOX + "/snapshots", **op("List the snapshots of a sandbox, newest first", Model, listed=True))
async def list_of_sandbox(sandbox: Sandbox, box: Box) -> Response:
    found = [names.outer_snapshot(sandbox.project, info) for info in await box.snapshots.list()]
    return answer({"items": found, "cursor": None})


@router.get(SANDBOX + "/snapshots/tree", **op("Get the snapshots of a sandbox as a tree", Tree))
async def tree_of_sandbox(sandbox: Sandbox, box: Box) -> Response:
    found = [names.outer_snapshot(sandbox.project, info) for info in await box.snapshots.list()]
    return answer(_tree(found))


@router.post(
    SANDBOX + "/restore",
    slots=CHANGES,
    **op("Restore a sandbox to a snapshot", SandboxModel, raises=(*LIFE, "SNAPSHOT_NOT_FOUND")),
)
async def restore(context: Ctx, who: Who, sandbox: Sandbox, box: Box, body: models.RestoreSnapshot) -> Response:
    """The sandbox keeps its id. All its processes end; volumes, limits, name and secrets stay as they are."""
    operation = f"POST {SANDBOX}/restore"
    found = await usable_snapshot(context, who, sandbox.project, body.snapshot, operation)
    assert found is not None
    return answer(shown(sandbox.project, sandbox.shown(await box.snapshots.restore(found))))


@router.get("/v1/snapshots", **op("List snapshots, newest first", Model, listed=True))
async def list_snapshots(context: Ctx, who: Who, project: ProjectQuery = None) -> Response:
    """List the snapshots of your projects, also those of sandboxes that are gone."""
    return answer({"items": await _mine(context, who, project), "cursor": None})


@router.get("/v1/snapshots/tree", **op("Get snapshots as a tree", Tree))
async def tree(context: Ctx, who: Who, project: ProjectQuery = None) -> Response:
    return answer(_tree(await _mine(context, who, project)))


async def _mine(context: Ctx, who: Who, project: str | None) -> list[SnapshotInfo]:
    projects, unclaimed = context.projects(who, project), context.sees_unclaimed(who, project)
    return [info for _, info in await context.holdings.list_snapshots(projects, unclaimed=unclaimed)]


def _tree(found: Sequence[SnapshotInfo]) -> dict[str, Any]:
    return {"items": snapshot_trees(found)}


@router.get("/v1/snapshots/{snapshot}", **op("Get a snapshot", Model))
async def show(snapshot: Snapshot) -> Response:
    return answer(snapshot.info)


@router.delete("/v1/snapshots/{snapshot}", slots=CHANGES, **op("Remove a snapshot", status=204))
async def delete(context: Ctx, snapshot: Snapshot) -> Response:
    """Snapshots taken after it get its parent. Sandboxes made from it stay as they are."""
    await context.holdings.snapshots(snapshot).delete_snapshot(snapshot.id)
    await context.leases.release("snapshot", snapshot.id)
    await context.store.ownership.gone("snapshot", [snapshot.id])
    return Response(status_code=204)
