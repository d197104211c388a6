"""Sandboxes: create, list, get, change, copy and destroy them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response

from skerry.core import Corrupted, State, to_problem
from skerry.sdk import MAX_GRACE, ProgressCallback, select_sandboxes
from skerry.server.context import About, Ctx, InProject, Sandbox, Who, note_made
from skerry.server.projects import names
from skerry.server.projects.create import adopt_copy
from skerry.server.projects.create import create as create_in_project
from skerry.server.projects.slots import CHANGES, CREATES, ENDS
from skerry.server.web.describe import SANDBOX, Box, SandboxModel, check_lifetime, op, shown
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer
from skerry.server.web.models.types import Answer
from skerry.server.web.problems import Problem, status_of
from skerry.server.web.progress import followed, follows
from skerry.server.web.refusals import CREATE, LIFE
from skerry.server.web.responses import NDJSON, while_there

router = Routes("sandboxes")

LINES = (
    "Lines `{type: log, text}` and `{type: progress, …}`, `{type: gap, lines}` for what a slow client missed, then"
    " `{type: done, sandbox}` or `{type: error, problem}`."
)


class ForkResult(Answer):
    """The outcome of one copy."""

    sandbox: SandboxModel | None  # type: ignore[valid-type]
    """The copy; null: there is none."""
    error: Problem | None
    """Why there is none; null: there is one."""


@router.post(
    "/v1/sandboxes",
    slots=CREATES,
    **op("Make a sandbox", SandboxModel, status=201, also={NDJSON: LINES}, raises=CREATE),
)
async def create(
    request: Request,
    context: Ctx,
    who: Who,
    project: InProject,
    body: models.CreateSandbox,  # type: ignore[valid-type]
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="The same call again with this key returns the same sandbox.")
    ] = None,
) -> Response:
    """The sandbox is ready for commands. With `Accept: application/x-ndjson`, the build of its template is reported."""

    async def make(on_log: Callable[[str], object] | None, on_progress: ProgressCallback | None) -> dict[str, Any]:
        _, info = await create_in_project(
            context, who, project, body, idempotency_key=idempotency_key, on_log=on_log, on_progress=on_progress
        )
        note_made(request, "sandbox", info.id, info.name)
        return {"sandbox": shown(project, info)}

    if follows(request):
        return followed(request, make)
    return answer((await while_there(request, make(None, None)))["sandbox"], 201)


@router.get("/v1/sandboxes", **op("List sandboxes", SandboxModel, listed=True))
async def list_sandboxes(
    request: Request,
    context: Ctx,
    who: Who,
    project: ProjectQuery = None,
    state: Annotated[State | None, Query(description="Only those in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most sandboxes to return.")] = 100,
    cursor: Annotated[str | None, Query(max_length=200, description="The `cursor` of the last answer.")] = None,
) -> Response:
    """List those of your projects, oldest first. `metadata.KEY=VALUE` and `label.KEY=VALUE` filter them."""
    projects = {item.id: item for item in context.projects(who, project)}
    unclaimed = context.sees_unclaimed(who, project)
    owner_of = context.sandboxes.owner
    seen = [info for info in await context.sandboxes.all() if unclaimed or owner_of(info) in projects]
    metadata, labels = _pairs(request, "metadata."), _pairs(request, "label.")
    page = select_sandboxes(seen, state=state, metadata=metadata, labels=labels, limit=limit, cursor=cursor)
    items = []
    for info in page:
        owner = projects.get(owner_of(info) or "")
        items.append(shown(owner, names.outer_sandbox(owner, info)))
    return answer({"items": items, "cursor": page.cursor})


def _pairs(request: Request, prefix: str) -> dict[str, str]:
    query = request.query_params.multi_items()
    return {key.removeprefix(prefix): value for key, value in query if key.startswith(prefix) and key != prefix}


@router.get(SANDBOX, **op("Get a sandbox", SandboxModel))
async def show(sandbox: Sandbox) -> Response:
    return answer(shown(sandbox.project, await sandbox.info()))


@router.patch(SANDBOX, slots=CHANGES, **op("Change how long a sandbox lives", SandboxModel, raises=LIFE))
async def update(
    context: Ctx, who: Who, about: About, sandbox: Sandbox, box: Box, body: models.UpdateSandbox
) -> Response:
    """An earlier end needs the right to destroy the sandbox."""
    info = await sandbox.info()
    if body.timeout is None:
        return answer(shown(sandbox.project, info))
    check_lifetime(context, who, about, info, body.timeout)
    return answer(shown(sandbox.project, sandbox.shown(await box.set_timeout(body.timeout))))


@router.patch(
    SANDBOX + "/limits", slots=CHANGES, **op("Change the limits of a running sandbox", SandboxModel, raises=LIFE)
)
async def limits(sandbox: Sandbox, box: Box, body: models.SetLimits) -> Response:
    info = await box.set_limits(
        cpu=body.cpu, cpu_percent=body.cpu_percent, memory=body.memory, disk=body.disk, pids=body.pids
    )
    return answer(shown(sandbox.project, sandbox.shown(info)))


@router.delete(SANDBOX, slots=ENDS, **op("Destroy a sandbox", status=204, raises=LIFE))
async def destroy(
    context: Ctx,
    sandbox: Sandbox,
    graceful: Annotated[bool, Query(description="Ask its processes to end first.")] = False,
    timeout: Annotated[float, Query(gt=0, le=MAX_GRACE, description="Wait at most this many seconds for them.")] = 30.0,
) -> Response:
    """End the sandbox and remove everything in it."""
    async with context.sandboxes.ending(sandbox.id):
        try:
            await (await sandbox.use()).destroy(graceful=graceful, timeout=timeout)
        except Corrupted:  # with nothing left to talk to
            await context.provider_of(sandbox).destroy(sandbox.id)
    return Response(status_code=204)


@router.post(
    SANDBOX + "/clone", slots=CREATES, **op("Make a running copy of a sandbox", SandboxModel, status=201, raises=CREATE)
)
async def clone(
    request: Request, context: Ctx, who: Who, sandbox: Sandbox, box: Box, body: models.CloneSandbox
) -> Response:
    """The copy has the files and variables as they are now, and the same volumes. It has no processes of the source.

    It gets the secrets only if you ask for them.
    """
    project = sandbox.project
    name = body.name if body.name is None or project is None else names.inner(project, body.name)
    copying = box.clone(name=name, **_copy_options(sandbox, body))
    made = await while_there(request, copying)
    info = await adopt_copy(context, who, made, project)
    note_made(request, "sandbox", info.id, info.name)
    return answer(shown(project, info), 201)


@router.post(
    SANDBOX + "/fork",
    slots=CREATES,
    **op("Make several copies of a sandbox at the same moment", ForkResult, status=201, listed=True, raises=CREATE),
)
async def fork(
    request: Request, context: Ctx, who: Who, sandbox: Sandbox, box: Box, body: models.ForkSandbox
) -> Response:
    """The answer has for each copy the sandbox, or the error that it ended with."""
    items: list[dict[str, Any]] = []
    for result in await while_there(request, box.fork(body.n, **_copy_options(sandbox, body))):
        if result.sandbox is None:
            assert result.error is not None
            items.append({"sandbox": None, "error": to_problem(result.error) | {"status": status_of(result.error)}})
        else:
            info = await adopt_copy(context, who, result.sandbox, sandbox.project)
            note_made(request, "sandbox", info.id, info.name)
            items.append({"sandbox": shown(sandbox.project, info), "error": None})
    return answer({"items": items, "cursor": None}, 201)


def _copy_options(sandbox: Sandbox, body: models.Copy) -> dict[str, Any]:
    labels = body.labels
    if labels is not None and sandbox.project is not None:
        labels = names.labels(sandbox.project, labels)
    return {
        "env": body.env,
        "resources": None if body.resources is None else body.resources.options(),
        "metadata": body.metadata,
        "labels": labels,
        "timeout": body.timeout,
        "on_timeout": body.on_timeout,
        "secrets": body.secrets,
    }
