"""The state of a sandbox or a snapshot as one file, streamed out and in."""

from __future__ import annotations

import asyncio
import io
from typing import Annotated

from fastapi import Header, Query, Request, Response
from pydantic import TypeAdapter, ValidationError

from skerry.core import InvalidArgument, Portable, SkerryError
from skerry.sdk import portable
from skerry.server.access.identity import Actor
from skerry.server.context import Context, Ctx, InProject, Sandbox, Snapshot, Who, note_made
from skerry.server.projects import create
from skerry.server.projects.slots import STATES
from skerry.server.streams.bridge import PIECE, Inlet, Outlet
from skerry.server.web.describe import SANDBOX, SandboxModel, op, shown
from skerry.server.web.guard import Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer
from skerry.server.web.models.types import Key
from skerry.server.web.refusals import CREATE, LIFE
from skerry.server.web.responses import Sender, Streamed, body

router = Routes("states", raises=LIFE)

STATE = "application/vnd.skerry.state"
_key = TypeAdapter(Key)


@router.post(SANDBOX + "/export", **op("Export the state of a sandbox as one file", raw=STATE))
async def export(context: Ctx, who: Who, sandbox: Sandbox, body: models.ExportState | None = None) -> Response:
    """It holds the files and variables as they are now, never secrets or volumes. A key encrypts it."""
    return _export(context, who, sandbox, body)


@router.post("/v1/snapshots/{snapshot}/export", **op("Export a snapshot as one file", raw=STATE))
async def export_snapshot(
    context: Ctx, who: Who, snapshot: Snapshot, body: models.ExportState | None = None
) -> Response:
    return _export(context, who, snapshot, body)


def _export(context: Context, who: Actor, source: Sandbox | Snapshot, wanted: models.ExportState | None) -> Response:
    chosen = portable(context.provider_of(source), "export_state")
    key = None if wanted is None else wanted.key

    async def send(sender: Sender) -> None:
        async with context.slots.taken(STATES, who):
            await _write(sender, chosen, source.id, key, f"{source.id}.skerry")

    return Streamed(send)


async def _write(sender: Sender, chosen: Portable, source: str, key: bytes | None, name: str) -> None:
    outlet = Outlet()

    async def write() -> None:
        try:
            await chosen.export_state(source, outlet, key=key, on_progress=None)  # type: ignore[arg-type]
        finally:
            await outlet.finish()

    task = asyncio.ensure_future(write())
    try:
        async for piece in outlet.pieces():
            if not sender.begun:
                head = {"content-type": STATE, "content-disposition": f'attachment; filename="{name}"'}
                await sender.head(200, head)
            await sender.write(piece)
        await task
    finally:
        outlet.abandon()
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and isinstance(error := task.exception(), SkerryError):
            raise error


@router.post("/v1/states", **op("Make a sandbox from a state", SandboxModel, status=201, sends=STATE, raises=CREATE))
async def import_state(
    request: Request,
    context: Ctx,
    who: Who,
    project: InProject,
    options: Annotated[
        str,
        Query(
            max_length=100_000,
            description="Options that differ from the state: JSON as for making a sandbox.",
            examples=["{}"],
        ),
    ] = "{}",
    skerry_options: Annotated[
        str | None, Header(description="The same, outside of the URL: only here may it have `secrets`.")
    ] = None,
    skerry_key: Annotated[
        str | None, Header(description="The key that the state was encrypted with: 32 bytes in base64.")
    ] = None,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="The same call again with this key returns the same sandbox.")
    ] = None,
) -> Response:
    """The body is what an export returned. `options` override what the state says."""
    try:
        wanted = models.CreateSandbox.model_validate_json(options if skerry_options is None else skerry_options)
        key = None if skerry_key is None else _key.validate_python(skerry_key)
    except ValidationError as error:
        where = error.errors()[0]
        raise InvalidArgument(f"options or key: {'.'.join(map(str, where['loc']))}: {where['msg']}") from None
    given = wanted.given()
    if skerry_options is None and (given.get("secrets") or getattr(given.get("source"), "password", None)):
        raise InvalidArgument("secrets do not belong in a URL", hint="send the options as the header Skerry-Options")
    async with context.slots.taken(STATES, who):
        source = io.BufferedReader(Inlet(body(request)), PIECE)
        _, info = await create.create(
            context, who, project, wanted, idempotency_key=idempotency_key, import_state=source, key=key
        )
    note_made(request, "sandbox", info.id, info.name)
    return answer(shown(project, info), 201)
