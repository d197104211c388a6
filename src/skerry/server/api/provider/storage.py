"""The rest of the provider contract over HTTP: snapshots, volumes, templates and their layers, states as files."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from skerry.core import (
    BuiltTemplate,
    InvalidArgument,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    Templates,
    VolumeInfo,
    check_shown,
    check_volume_name,
    from_plain,
    load_json,
    parse_size,
)
from skerry.sdk import offering, portable
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.access.revocation import until_over
from skerry.server.api.provider.body import Plain, read_body
from skerry.server.api.provider.verbs import (
    BASE,
    INFO,
    ONE,
    HolderQuery,
    ProcessQuery,
    adopt,
    answer,
    gives,
    leased_to,
    takes,
)
from skerry.server.context import About, Context, Ctx, InProject, Sandbox, Snapshot, Volume, Who, note_made
from skerry.server.projects import names
from skerry.server.projects.create import usable_snapshot
from skerry.server.projects.slots import CHANGES, STATES
from skerry.server.projects.spec import inner_spec
from skerry.server.streams.bridge import PIECE, Inlet
from skerry.server.streams.browser import ignore_disconnect
from skerry.server.streams.export import exporting
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.refusals import CREATE
from skerry.server.web.responses import Sender, Streamed, body

router = Routes("provider", raises=CREATE)
MAX_SPEC = 8 << 20
MAX_DESCRIPTION = 10_000
BUILD_PATIENCE = 6 * 3600.0


# -- snapshots


@dataclass(frozen=True)
class SnapshotBody:
    name: str | None = None
    description: str = ""
    hidden: bool = False
    holder: str | None = None


@router.post(
    f"{ONE}/snapshots",
    slots=CHANGES,
    openapi_extra=takes("name", "description", "hidden", "holder"),
    responses=gives(SnapshotInfo),
    response_class=Plain,
)
async def create_snapshot(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Take a snapshot. A `hidden` one ends with its holder."""
    body = await read_body(request, SnapshotBody)
    if body.hidden and body.holder is None:
        raise InvalidArgument("a hidden snapshot needs a holder")
    if len(body.description) > MAX_DESCRIPTION:
        raise InvalidArgument(f"a description has at most {MAX_DESCRIPTION} characters")
    check_shown(body.description, "a description")
    name = body.name
    if name is not None and sandbox.project is not None:
        name = names.inner(sandbox.project, name)
    if body.holder is not None:
        context.leases.renew(body.holder)
    info = await context.holdings.snapshots(sandbox).create_snapshot(
        sandbox.id, name=name, description=body.description, hidden=body.hidden
    )
    await context.holdings.note_snapshot(sandbox.project, sandbox.provider, info)
    note_made(request, "snapshot", info.id, body.name)
    if body.hidden and body.holder is not None:
        await context.leases.hold("snapshot", info.id, body.holder, 0)
    return Plain(names.outer_snapshot(sandbox.project, info))


@router.get(f"{BASE}/snapshots", responses=gives(list[SnapshotInfo]), response_class=Plain)
async def list_snapshots(
    context: Ctx,
    who: Who,
    project: ProjectQuery = None,
    sandbox: Annotated[str | None, Query(max_length=200, description="List only those of this sandbox, by id.")] = None,
) -> Response:
    """List snapshots, newest first."""
    projects, unclaimed = context.projects(who, project), context.sees_unclaimed(who, project)
    found = await context.holdings.list_snapshots(projects, unclaimed=unclaimed)
    return Plain([info for _, info in found if sandbox in (None, info.sandbox_id)])


@router.get(f"{BASE}/snapshots/{{snapshot}}", responses=gives(SnapshotInfo), response_class=Plain)
async def show_snapshot(snapshot: Snapshot) -> Response:
    """Get a snapshot."""
    return Plain(snapshot.info)


@router.delete(f"{BASE}/snapshots/{{snapshot}}", slots=CHANGES, status_code=204)
async def delete_snapshot(context: Ctx, snapshot: Snapshot) -> None:
    """Remove a snapshot."""
    await context.holdings.snapshots(snapshot).delete_snapshot(snapshot.id)
    await context.leases.release("snapshot", snapshot.id)
    await context.store.ownership.gone("snapshot", [snapshot.id])


@dataclass(frozen=True)
class Restore:
    snapshot: str


@router.post(f"{ONE}/restore", slots=CHANGES, openapi_extra=takes("snapshot"), **INFO)
async def restore(request: Request, context: Ctx, who: Who, sandbox: Sandbox) -> Response:
    """Bring the sandbox's files to exactly what they were."""
    asked = (await read_body(request, Restore)).snapshot
    found = await usable_snapshot(context, who, sandbox.project, asked, f"POST {ONE}/restore")
    assert found is not None
    return answer(context, sandbox, await context.holdings.snapshots(sandbox).restore_snapshot(sandbox.id, found))


# -- volumes


@dataclass(frozen=True)
class VolumeBody:
    name: str
    size: int | None = None
    temporary: bool = False
    encrypted: bool = False


@router.post(
    f"{BASE}/volumes",
    slots=CHANGES,
    openapi_extra=takes("name", "size", "temporary", "encrypted"),
    responses=gives(VolumeInfo),
    response_class=Plain,
)
async def create_volume(request: Request, context: Ctx, project: InProject) -> Response:
    """Make an empty volume."""
    body = await read_body(request, VolumeBody)
    size = None if body.size is None else parse_size(body.size)
    name = names.inner(project, check_volume_name(body.name))
    info = await context.holdings.volumes().create_volume(
        name, size=size, temporary=body.temporary, encrypted=body.encrypted
    )
    note_made(request, "volume", body.name)
    return Plain(names.outer_volume(project, info))


@router.get(f"{BASE}/volumes", responses=gives(list[VolumeInfo]), response_class=Plain)
async def list_volumes(context: Ctx, who: Who, project: ProjectQuery = None) -> Response:
    """List volumes, by name."""
    projects, unclaimed = context.projects(who, project), context.sees_unclaimed(who, project)
    found = [info for _, info in await context.holdings.list_volumes(projects, unclaimed=unclaimed)]
    return Plain(sorted(found, key=lambda info: info.name))


@router.get(f"{BASE}/volumes/{{volume}}", responses=gives(VolumeInfo), response_class=Plain)
async def show_volume(volume: Volume) -> Response:
    """Get a volume."""
    return Plain(volume.info)


@router.delete(f"{BASE}/volumes/{{volume}}", slots=CHANGES, status_code=204)
async def delete_volume(context: Ctx, volume: Volume) -> None:
    """Remove a volume."""
    await context.holdings.volumes(volume).delete_volume(volume.inner)


# -- templates


def _templates(context: Context) -> Templates:
    return offering(context.providers.default)


@router.get(f"{BASE}/templates", responses=gives(list[BuiltTemplate]), response_class=Plain)
async def list_templates(context: Ctx) -> Response:
    """List the built templates."""
    return Plain(await _templates(context).list_templates())


@router.get(f"{BASE}/templates/{{template:path}}", responses=gives(BuiltTemplate), response_class=Plain)
async def show_template(context: Ctx, template: str) -> Response:
    """Get a template by id, reference, name with version, or name."""
    return Plain(await _templates(context).find_template(template))


@router.delete(f"{BASE}/templates/{{template:path}}", slots=CHANGES, status_code=204)
async def remove_template(context: Ctx, template: str, later: bool = False) -> None:
    """Remove a template. With `later`, one that is needed is removed when nothing needs it any more."""
    await _templates(context).remove_template(template, later=later)


@router.post(
    f"{BASE}/templates",
    slots=CHANGES,
    openapi_extra=takes("name", "id", "layers"),
    responses=gives(BuiltTemplate),
    response_class=Plain,
)
async def add_template(request: Request, context: Ctx) -> Response:
    """Keep a template whose layers exist."""
    template = await read_body(request, BuiltTemplate)
    for text in (template.name, template.description, *template.aliases):
        check_shown(text, "a template's name or description")
    return Plain(await _templates(context).add_template(template))


@router.get(f"{BASE}/layers/{{digest}}", responses=gives(bool), response_class=Plain)
async def has_layer(context: Ctx, digest: str) -> Response:
    """Say whether there is a layer with this digest."""
    return Plain(await _templates(context).has_layer(digest))


@dataclass(frozen=True)
class Commit:
    digest: str
    directory: str | None = None


@router.post(f"{ONE}/commit", slots=CHANGES, openapi_extra=takes("digest", "directory"), status_code=204)
async def commit(request: Request, context: Ctx, sandbox: Sandbox) -> None:
    """End the sandbox and keep what it wrote as a layer."""
    body = await read_body(request, Commit)
    async with context.sandboxes.ending(sandbox.id):
        await offering(context.provider_of(sandbox)).commit_layer(sandbox.id, body.digest, directory=body.directory)
        await context.leases.release("sandbox", sandbox.id)


@router.websocket(f"{BASE}/layers/{{digest}}/building")
async def building(socket: WebSocket, context: Ctx, who: Who, about: About, digest: str) -> None:
    """Hold the right to build a layer: a byte says that the client has it; closing the socket gives it back."""
    await _templates(context).has_layer(digest)  # refuses what is not a digest, as for a request
    await socket.accept()

    async def closed(scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(BUILD_PATIENCE):
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        scope.cancel()

    async def over(scope: anyio.CancelScope) -> None:
        await until_over(context, who, about, (Action.SERVER_ADMIN,))
        scope.cancel()

    with ignore_disconnect():
        async with anyio.create_task_group() as tasks:
            for end in (closed, over):
                tasks.start_soon(end, tasks.cancel_scope)
            async with _templates(context).building(digest):
                await socket.send_bytes(b"1")
                await anyio.sleep_forever()


# -- states as files


@router.get(f"{ONE}/state", response_class=Response)
async def export_sandbox(context: Ctx, who: Who, sandbox: Sandbox) -> Response:
    """Send the sandbox's state in pieces: see docs/how-to/remote.md."""
    return _export(context, who, sandbox)


@router.get(f"{BASE}/snapshots/{{snapshot}}/state", response_class=Response)
async def export_snapshot(context: Ctx, who: Who, snapshot: Snapshot) -> Response:
    """Send a snapshot's state in pieces."""
    return _export(context, who, snapshot)


def _export(context: Context, who: Actor, source: Sandbox | Snapshot) -> Response:
    chosen = portable(context.provider_of(source), "export_state")

    async def send(sender: Sender) -> None:
        async with context.slots.taken(STATES, who), aclosing(exporting(chosen, source.id)) as pieces:
            async for piece in pieces:
                if not sender.begun:
                    await sender.head(200, {"content-type": "application/vnd.skerry.pieces"})
                await sender.write(piece)

    return Streamed(send)


@router.post(f"{BASE}/states", openapi_extra={"requestBody": {"content": {"application/vnd.skerry.state": {}}}}, **INFO)
async def import_(
    request: Request,
    context: Ctx,
    who: Who,
    project: InProject,
    holder: HolderQuery = None,
    process: ProcessQuery = 0,
) -> Response:
    """Make a sandbox from a state: the length of the specification (4 bytes), the specification, the archive."""
    chunks = body(request)
    head, rest = await _head(chunks)
    spec = from_plain(SandboxSpec, load_json(head))
    holder = leased_to(context, spec, holder)
    inner = await inner_spec(context, who, project, spec)
    chosen = portable(context.providers.default, "import_state")
    async with context.slots.taken(STATES, who):
        source: Any = io.BufferedReader(Inlet(_after(rest, chunks)), PIECE)
        info: SandboxInfo = await chosen.import_state(source, inner, key=None, on_progress=None)
    return await adopt(request, context, who, project, info, holder, process)


async def _head(chunks: AsyncIterator[bytes]) -> tuple[bytes, bytes]:
    """The specification, and the part of the archive that has arrived after it."""
    data, end = bytearray(), 4
    async for chunk in chunks:
        data += chunk
        if len(data) >= 4:
            end = 4 + int.from_bytes(data[:4], "big")
            if not 4 < end <= 4 + MAX_SPEC:
                raise InvalidArgument("the body does not begin with a specification")
            if len(data) >= end:
                return bytes(data[4:end]), bytes(data[end:])
    raise InvalidArgument("the body ends too early")


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk
