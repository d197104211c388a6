"""The verbs of the provider contract over HTTP, inside projects, for `skerry.providers.remote`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skerry.core import (
    Archivable,
    Changes,
    Deadlines,
    Event,
    InvalidArgument,
    Leases,
    Pausable,
    Resizable,
    Resources,
    SandboxInfo,
    SandboxSpec,
    Stoppable,
    Unsupported,
    Usage,
    capabilities,
    check_lifetime,
)
from skerry.sdk import (
    archivable,
    check_grace,
    check_resources,
    check_text,
    encode_env,
    pausable,
    stoppable,
)
from skerry.server.access.identity import Actor
from skerry.server.api.provider.body import Plain, read_body
from skerry.server.context import About, Context, Ctx, InProject, Sandbox, Who, note_made
from skerry.server.projects import names as naming
from skerry.server.projects.create import maker
from skerry.server.projects.sandboxes import Located
from skerry.server.projects.slots import CHANGES, CREATES, ENDS
from skerry.server.projects.spec import inner_spec
from skerry.server.store import Belonging, Project
from skerry.server.web import describe
from skerry.server.web.document import served
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.refusals import CREATE

router = Routes("provider", raises=CREATE)
BASE = "/v1/provider"
ONE = f"{BASE}/sandboxes/{{sandbox}}"
HolderQuery = Annotated[str | None, Query(max_length=64, description="The client that it ends with: see `holders`.")]
ProcessQuery = Annotated[int, Query(ge=0, le=2**31, description="The holder's process id, for people who look.")]


def takes(*names: str) -> dict[str, Any]:
    """The fields of the body, for OpenAPI."""
    schema = {"type": "object", "properties": {name: {} for name in names}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def gives(kind: Any) -> dict[int | str, dict[str, Any]]:
    """The type of the answer, for OpenAPI."""
    return {200: {"model": kind}}


SPEC = takes(*(item.name for item in dataclasses.fields(SandboxSpec)))
INFO: dict[str, Any] = {"responses": gives(SandboxInfo), "response_class": Plain}


def shown(context: Context, project: Project | None, info: SandboxInfo) -> SandboxInfo:
    """A sandbox as its users see it, with the client process that it ends with."""
    return dataclasses.replace(
        naming.outer_sandbox(project, info),
        leased_to=context.leases.process_of(info.id),
        prepared=info.prepared and not context.leases.is_preparing(info.id),
    )


def answer(context: Context, sandbox: Located, info: SandboxInfo) -> Response:
    return Plain(shown(context, sandbox.project, info))


def leased_to(context: Context, spec: SandboxSpec, holder: str | None) -> str | None:
    """The client that a new sandbox ends with, if any. Raises InvalidArgument, before anything is made."""
    if not spec.leased:
        return None
    if holder is None:
        raise InvalidArgument("a sandbox that is leased needs a holder")
    context.leases.renew(holder)
    return holder


async def adopt(
    request: Request,
    context: Context,
    who: Actor,
    project: Project,
    info: SandboxInfo,
    holder: str | None,
    process: int,
) -> Response:
    """Note who owns a new sandbox; a lease of the server itself passes to the holder.

    That gives the server's own lease back, so `prepared` says from then on whether the lease has passed: a second
    create with the same key takes nothing from the first.
    """
    name = naming.outer(project, info.name)
    provider = context.providers.default
    item = Belonging(
        kind="sandbox", id=info.id, provider=provider.name, project_id=project.id, name=name, made_by=maker(who)
    )
    await context.store.ownership.put([item])
    note_made(request, "sandbox", info.id, name)
    await context.events.collect(info.id)
    if holder is not None and isinstance(provider, Leases) and not info.prepared:
        await context.leases.hold("sandbox", info.id, holder, process, preparing=True)
        await provider.record_lease(info.id, held=False)
        info = await provider.get(info.id)
    return Plain(shown(context, project, info))


@router.get(BASE, responses=gives(dict[str, Any]), response_class=Plain)
async def about(context: Ctx) -> Response:
    """Get the provider behind this server, and what it can do."""
    provider = context.providers.default
    return Plain({"name": provider.name, "capabilities": sorted(capabilities(provider))})


@router.get(f"{BASE}/openapi.json", response_class=JSONResponse)
async def openapi(request: Request) -> Response:
    """Describe this API. It is internal: it may change with every version."""
    return served(request, internal=True)


@router.post(f"{BASE}/sandboxes", slots=CREATES, openapi_extra=SPEC, **INFO)
async def create(
    request: Request,
    context: Ctx,
    who: Who,
    project: InProject,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    holder: HolderQuery = None,
    process: ProcessQuery = 0,
) -> Response:
    """Make a sandbox from a whole specification."""
    spec = await read_body(request, SandboxSpec)
    holder = leased_to(context, spec, holder)
    if spec.idempotency_key is None and idempotency_key is not None:
        spec = dataclasses.replace(spec, idempotency_key=f"header:{idempotency_key}")
    spec = await inner_spec(context, who, project, spec)
    with context.metrics.creation():
        info = await context.providers.default.create(spec)
    return await adopt(request, context, who, project, info, holder, process)


@router.get(f"{BASE}/sandboxes", responses=gives(list[SandboxInfo]), response_class=Plain)
async def list_(context: Ctx, who: Who, project: ProjectQuery = None) -> Response:
    """List every sandbox of your projects, oldest first."""
    projects = {item.id: item for item in context.projects(who, project)}
    unclaimed = context.sees_unclaimed(who, project)
    found = []
    for info in await context.sandboxes.all():
        owner = projects.get(context.sandboxes.owner(info) or "")
        if owner is not None or unclaimed:
            found.append(shown(context, owner, info))
    return Plain(found)


@router.get(ONE, **INFO)
async def show(context: Ctx, sandbox: Sandbox) -> Response:
    """Get a sandbox."""
    return answer(context, sandbox, await context.provider_of(sandbox).get(sandbox.id))


@router.delete(ONE, slots=ENDS, status_code=204)
async def destroy(context: Ctx, sandbox: Sandbox) -> None:
    """Destroy a sandbox."""
    async with context.sandboxes.ending(sandbox.id):
        await context.provider_of(sandbox).destroy(sandbox.id)
        await context.leases.release("sandbox", sandbox.id)


@router.get(f"{ONE}/usage", responses=gives(Usage), response_class=Plain)
async def usage(context: Ctx, sandbox: Sandbox) -> Response:
    """Get what the provider itself measures."""
    return Plain(await context.provider_of(sandbox).usage(sandbox.id))


@router.get(f"{ONE}/events", responses=gives(list[Event]), response_class=Plain)
async def events(context: Ctx, sandbox: Sandbox, since: Annotated[int, Query(ge=0, le=2**62)] = 0) -> Response:
    """List what happened to a sandbox."""
    return Plain(await context.provider_of(sandbox).events(sandbox.id, since))


@router.post(f"{BASE}/sweep", responses=gives(list[str]), response_class=Plain)
async def sweep(context: Ctx) -> Response:
    """Remove what nobody owns any more."""
    swept = await context.leases.sweep()
    for provider in context.providers.values():
        swept += await provider.sweep()
    return Plain(swept)


# -- the end of a sandbox


@dataclass(frozen=True)
class Seconds:
    seconds: float


@router.post(f"{ONE}/deadline", slots=CHANGES, openapi_extra=takes("seconds"), **INFO)
async def deadline(request: Request, context: Ctx, who: Who, about: About, sandbox: Sandbox) -> Response:
    """Record the sandbox's new end, which its agent already knows. An earlier end needs the right to destroy it."""
    body = await read_body(request, Seconds)
    provider = context.provider_of(sandbox)
    describe.check_lifetime(context, who, about, await provider.get(sandbox.id), check_lifetime(body.seconds))
    if not isinstance(provider, Deadlines):
        raise Unsupported("the lifetime of a sandbox cannot be changed here", option="set_timeout")
    return answer(context, sandbox, await provider.record_deadline(sandbox.id, check_lifetime(body.seconds)))


@dataclass(frozen=True)
class LeaseBody:
    held: bool
    holder: str
    process: int = 0


@router.post(f"{ONE}/lease", openapi_extra=takes("held", "holder", "process"), status_code=204)
async def lease(request: Request, context: Ctx, sandbox: Sandbox) -> None:
    """Tie the sandbox to a client, which renews its name while it lives, or end that tie."""
    body = await read_body(request, LeaseBody)
    if body.held:
        await context.leases.hold("sandbox", sandbox.id, body.holder, body.process)
    else:
        await context.leases.release("sandbox", sandbox.id)


@router.put(f"{BASE}/holders/{{holder}}", status_code=204)
async def renew(context: Ctx, holder: str) -> None:
    """Say that a client lives: what it holds lives on."""
    context.leases.renew(holder)


# -- states


@router.post(f"{ONE}/limits", slots=CHANGES, openapi_extra=takes("cpu", "memory", "disk", "pids"), **INFO)
async def limits(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Change the limits of a running sandbox."""
    wanted = check_resources(await read_body(request, Resources))
    provider = context.provider_of(sandbox)
    if not isinstance(provider, Resizable):
        raise Unsupported("limits cannot be changed here", option="set_limits")
    return answer(context, sandbox, await provider.set_limits(sandbox.id, wanted))


@dataclass(frozen=True)
class Grace:
    grace: float = 0.0


@router.post(f"{ONE}/stop", slots=CHANGES, openapi_extra=takes("grace"), **INFO)
async def stop(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Stop a sandbox."""
    grace = check_grace((await read_body(request, Grace)).grace)
    return answer(context, sandbox, await _stoppable(context, sandbox).stop(sandbox.id, grace=grace))


@router.post(f"{ONE}/start", slots=CHANGES, **INFO)
async def start(context: Ctx, sandbox: Sandbox) -> Response:
    """Start a sandbox."""
    return answer(context, sandbox, await _stoppable(context, sandbox).start(sandbox.id))


@dataclass(frozen=True)
class Restart:
    changes: Changes
    grace: float = 0.0


@router.post(f"{ONE}/restart", slots=CHANGES, openapi_extra=takes("changes", "grace"), **INFO)
async def restart(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Stop and start a sandbox, optionally with changes."""
    body = await read_body(request, Restart)
    encode_env(body.changes.env or {})
    changes = Changes(
        env=body.changes.env,
        resources=None if body.changes.resources is None else check_resources(body.changes.resources),
        template=None if body.changes.template is None else check_text(body.changes.template, "template"),
    )
    info = await _stoppable(context, sandbox).restart(sandbox.id, changes, grace=check_grace(body.grace))
    return answer(context, sandbox, info)


@dataclass(frozen=True)
class Reset:
    hard: bool = False


@router.post(f"{ONE}/reset", slots=CHANGES, openapi_extra=takes("hard"), **INFO)
async def reset(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Kill the processes of a sandbox; with `hard`, reset its files too."""
    hard = (await read_body(request, Reset)).hard
    return answer(context, sandbox, await _stoppable(context, sandbox).reset(sandbox.id, hard=hard))


@router.post(f"{ONE}/recover", slots=CHANGES, **INFO)
async def recover(context: Ctx, sandbox: Sandbox) -> Response:
    """Start a failed sandbox."""
    return answer(context, sandbox, await _stoppable(context, sandbox).recover(sandbox.id))


@router.post(f"{ONE}/pause", slots=CHANGES, **INFO)
async def pause(context: Ctx, sandbox: Sandbox) -> Response:
    """Freeze the processes of a sandbox."""
    return answer(context, sandbox, await _pausable(context, sandbox).pause(sandbox.id))


@router.post(f"{ONE}/resume", slots=CHANGES, **INFO)
async def resume(context: Ctx, sandbox: Sandbox) -> Response:
    """Let the processes of a sandbox continue."""
    return answer(context, sandbox, await _pausable(context, sandbox).resume(sandbox.id))


@dataclass(frozen=True)
class KeyBody:
    key: bytes | None = field(default=None, repr=False)

    def checked(self) -> bytes | None:
        if self.key is not None and len(self.key) != 32:
            raise InvalidArgument(f"a key has 32 bytes, not {len(self.key)}")
        return self.key


@router.post(f"{ONE}/archive", slots=CHANGES, openapi_extra=takes("key"), **INFO)
async def archive(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Archive the sandbox. `key`, 32 bytes in base64, encrypts the archive; the server does not keep it."""
    key = (await read_body(request, KeyBody)).checked()
    return answer(context, sandbox, await _archivable(context, sandbox).archive(sandbox.id, key=key))


@router.post(f"{ONE}/unarchive", slots=CHANGES, openapi_extra=takes("key"), **INFO)
async def unarchive(request: Request, context: Ctx, sandbox: Sandbox) -> Response:
    """Bring a sandbox back from its archive."""
    key = (await read_body(request, KeyBody)).checked()
    return answer(context, sandbox, await _archivable(context, sandbox).unarchive(sandbox.id, key=key))


def _stoppable(context: Context, sandbox: Located) -> Stoppable:
    return stoppable(context.provider_of(sandbox), "stop")


def _pausable(context: Context, sandbox: Located) -> Pausable:
    return pausable(context.provider_of(sandbox), "pause")


def _archivable(context: Context, sandbox: Located) -> Archivable:
    return archivable(context.provider_of(sandbox), "archive")
