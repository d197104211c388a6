"""Volumes of projects."""

from __future__ import annotations

from fastapi import Request, Response

from skerry.core import VolumeInfo
from skerry.sdk import AsyncVolumes
from skerry.server.context import Ctx, InProject, Volume, Who, note_made
from skerry.server.projects import names
from skerry.server.projects.slots import CHANGES
from skerry.server.web.describe import op
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.refusals import CHANGE

router = Routes("volumes", raises=(*CHANGE, "ALREADY_EXISTS"))

Model = mirrored(VolumeInfo)


@router.post("/v1/volumes", slots=CHANGES, **op("Make an empty volume", Model, status=201))
async def create(request: Request, context: Ctx, project: InProject, body: models.CreateVolume) -> Response:
    """The volume belongs to the project. Its sandboxes mount it with `volumes` when they are made."""
    made = await AsyncVolumes(context.providers.default).create(
        names.inner(project, body.name), size=body.size, temporary=body.temporary, encrypted=body.encrypted
    )
    note_made(request, "volume", body.name)
    return answer(names.outer_volume(project, made), 201)


@router.get("/v1/volumes", **op("List volumes", Model, listed=True))
async def list_volumes(context: Ctx, who: Who, project: ProjectQuery = None) -> Response:
    """List the volumes of your projects, by name."""
    projects, unclaimed = context.projects(who, project), context.sees_unclaimed(who, project)
    found = await context.holdings.list_volumes(projects, unclaimed=unclaimed)
    return answer({"items": [info for _, info in found], "cursor": None})


@router.get("/v1/volumes/{volume}", **op("Get a volume", Model))
async def show(volume: Volume) -> Response:
    return answer(volume.info)


@router.delete("/v1/volumes/{volume}", slots=CHANGES, **op("Remove a volume with everything in it", status=204))
async def delete(context: Ctx, volume: Volume) -> Response:
    """Answers CONFLICT while a sandbox has it, running or not."""
    await context.holdings.volumes(volume).delete_volume(volume.inner)
    return Response(status_code=204)
