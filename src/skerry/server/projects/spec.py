"""Turns a client's SandboxSpec into one for the provider: checked like options, and inside its project."""

from __future__ import annotations

import dataclasses

from skerry.core import InvalidArgument, SandboxNotFound, SandboxSpec
from skerry.sdk import build_spec, check_instructions, check_text
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.context import Context
from skerry.server.projects import names
from skerry.server.projects.create import usable_snapshot
from skerry.server.store import Project

LONGEST = 300


async def inner_spec(context: Context, actor: Actor, project: Project, spec: SandboxSpec) -> SandboxSpec:
    """Raises what `create` raises for its options, and an error for what is not the actor's."""
    checked = build_spec(
        name=spec.name,
        env=spec.env,
        secrets=spec.secrets,
        metadata=spec.metadata,
        labels=names.labels(project, spec.labels),
        timeout=spec.timeout,
        on_timeout=spec.on_timeout,
        auto_stop=spec.auto_stop,
        auto_archive=spec.auto_archive,
        auto_delete=spec.auto_delete,
        purpose=spec.purpose,
        resources=spec.resources,
        volumes=names.inner_mounts(project, spec.volumes),
        network=spec.network,
        user=spec.user,
        workdir=spec.workdir,
        idempotency_key=names.inner_key(project, spec.idempotency_key),
        isolation=spec.isolation,
        encrypted=spec.encrypted,
    )
    if len(spec.template) > LONGEST or "\0" in spec.template or not spec.template:
        raise InvalidArgument("this is not the name of a template")
    return dataclasses.replace(
        checked,
        name=None if checked.name is None else names.inner(project, checked.name),
        template=spec.template,
        snapshot=await usable_snapshot(context, actor, project, spec.snapshot, "POST /v1/provider/sandboxes"),
        secrets_of=await _secrets_of(context, actor, project, spec.secrets_of),
        source=None if spec.source is None else check_text(spec.source, "source"),
        instructions=check_instructions(spec.instructions),
        leased=spec.leased,
        unsynced=spec.unsynced,
    )


async def _secrets_of(context: Context, actor: Actor, project: Project, asked: str | None) -> str | None:
    """The id of a sandbox of the same project: its secrets stay there."""
    if asked is None:
        return None
    subject, found = await context.sandboxes.locate(actor, asked, within=project.id)
    inside = found is not None and found.project is not None and found.project.id == project.id
    if found is None or not inside or not context.allows(actor, Action.SANDBOX_WRITE, subject):
        raise SandboxNotFound(f"there is no sandbox {asked[:200]!r} in this project")
    return found.id
