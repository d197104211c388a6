"""Makes sandboxes for a project: names, labels, volumes and snapshots are those of the project."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from skerry.core import SandboxInfo, SandboxNotFound
from skerry.sdk import AsyncSandbox, ProgressCallback
from skerry.server.access.check import authorize
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.context import Context
from skerry.server.projects import names
from skerry.server.store import Project
from skerry.server.web.models.sandboxes import CreateBody, check_image


async def usable_snapshot(
    context: Context, actor: Actor, project: Project | None, asked: str | None, operation: str
) -> str | None:
    """The id of a snapshot that the actor may make a sandbox from. Readers may not: it contains variables.

    A name is first looked up in the sandbox's own project. Raises SnapshotNotFound, PermissionDenied, Conflict.
    """
    if asked is None:
        return None
    subject, located = await context.holdings.locate_snapshot(
        actor, asked, within=None if project is None else project.id
    )
    if located is None:
        subject, located = await context.holdings.locate_snapshot(actor, asked)
    await authorize(context.store, actor, Action.SNAPSHOT_WRITE, subject, operation=operation)
    assert located is not None
    return located.id


async def create(
    context: Context,
    actor: Actor,
    project: Project,
    body: CreateBody,
    *,
    idempotency_key: str | None,
    on_log: Callable[[str], object] | None = None,
    on_progress: ProgressCallback | None = None,
    import_state: Any = None,
    key: bytes | None = None,
) -> tuple[AsyncSandbox, SandboxInfo]:
    """A new sandbox of a project, as users see it. Raises what `AsyncSandbox.create` raises."""
    given = body.given()
    check_image(given.get("image"))
    for option in ("snapshot", "restore_from"):
        given[option] = await usable_snapshot(context, actor, project, given.get(option), "POST /v1/sandboxes")
    if given.get("name") is not None:
        given["name"] = names.inner(project, given["name"])
    if given.get("volumes") is not None:
        given["volumes"] = names.inner_mounts(project, given["volumes"])
    given["labels"] = names.labels(project, given.get("labels"))
    given["idempotency_key"] = names.inner_key(project, idempotency_key)
    make = partial(
        AsyncSandbox.create,
        context.providers.default,
        **given,
        import_state=import_state,
        key=key,
        on_log=on_log,
        on_progress=on_progress,
    )
    with context.metrics.creation():
        try:
            made = await make()
        except SandboxNotFound:
            if idempotency_key is None:
                raise
            made = await make()  # the request that was making it with the same key has given up, and left nothing
    await context.sandboxes.adopt(made, project, made_by=maker(actor))
    return made, names.outer_sandbox(project, await made.info())


def maker(actor: Actor) -> str | None:
    """The id of the user on whose behalf the actor acts."""
    return None if actor.user is None else actor.user.id


async def adopt_copy(context: Context, actor: Actor, made: AsyncSandbox, project: Project | None) -> SandboxInfo:
    """Note a copy of a sandbox; returns it as users see it."""
    info = await made.info()
    if project is None:
        await context.sandboxes.note([info])
    else:
        await context.sandboxes.adopt(made, project, made_by=maker(actor))
    return names.outer_sandbox(project, info)
