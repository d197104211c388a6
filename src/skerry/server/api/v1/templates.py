"""Templates. Everybody may use all of them; a name belongs to the project that built it first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from fastapi import Path, Request, Response

from skerry.core import BuiltTemplate, Conflict, InvalidArgument, PermissionDenied, TemplateInfo, stem
from skerry.sdk import BUILD_TIMEOUT, AsyncTemplates, ProgressCallback, offering
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.context import About, Context, Ctx, Who
from skerry.server.projects.projects import locate
from skerry.server.projects.slots import CHANGES
from skerry.server.store import Belonging
from skerry.server.web.describe import op
from skerry.server.web.guard import Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.progress import followed, follows
from skerry.server.web.refusals import CHANGE, CREATE
from skerry.server.web.responses import NDJSON, SSE, while_there
from skerry.templates import Template, parse_text

router = Routes("templates")

Model = mirrored(TemplateInfo)
Name = Annotated[str, Path(max_length=200, description="With or without a version.", examples=["python:3.12"])]
LINES = (
    "Lines `{type: log, text}` and `{type: progress, …}`, `{type: gap, lines}` for what a slow client missed, then"
    " `{type: done, template}` or `{type: error, problem}`."
)


@router.get("/v1/templates", **op("List templates", Model, listed=True, raises=("UNSUPPORTED",)))
async def list_templates(context: Ctx) -> Response:
    """List the templates that come with Skerry, built or not, and those built here, by name."""
    return answer({"items": await AsyncTemplates(context.providers.default).list(), "cursor": None})


@router.get("/v1/templates/{template}", **op("Get a template", Model, raises=("UNSUPPORTED",)))
async def show(context: Ctx, template: Name) -> Response:
    return answer(await AsyncTemplates(context.providers.default).show(template))


@router.post("/v1/templates", **op("Build a template", Model, also={NDJSON: LINES, SSE: LINES}, raises=CREATE))
async def build(request: Request, context: Ctx, who: Who, about: About, body: models.BuildTemplate) -> Response:
    """Builds everything that it is based on too, unless it is built. `Accept` can ask for the log and progress live.

    Answers CONFLICT for the name or alias of a template that others have built. With `force`, only administrators may
    rebuild what comes with Skerry.
    """
    wanted = _definition(body)
    models.check_image(body.image)
    if isinstance(wanted, str) and body.force and not context.allows(who, Action.TEMPLATE_REMOVE, about):
        raise PermissionDenied(
            f"only an administrator may rebuild the template {wanted!r}: everybody's sandboxes begin with it",
            hint="leave out force: the template is built unless it exists",
        )
    title = wanted.name if isinstance(wanted, Template) else (body.name or "").partition(":")[0]
    aliases = wanted.aliases if isinstance(wanted, Template) else ()

    async def make(on_log: Callable[[str], object] | None, on_progress: ProgressCallback | None) -> dict[str, Any]:
        async with _named(context, who, about, title, aliases):
            info = await AsyncTemplates(context.providers.default).build(
                wanted,
                image=body.image,
                name=body.name,
                force=body.force,
                timeout=BUILD_TIMEOUT if body.timeout is None else body.timeout,
                on_log=on_log,
                on_progress=on_progress,
            )
        return {"template": info}

    if follows(request):
        return followed(request, make)
    return answer((await while_there(request, make(None, None)))["template"])


def _definition(body: models.BuildTemplate) -> Template | str | None:
    """Raises InvalidArgument: a path would be one of the server's own files."""
    if body.yaml is None:
        if body.template is not None and ("/" in body.template or body.template.endswith((".yaml", ".yml"))):
            raise InvalidArgument(f"{body.template!r} is not the name of a template", hint="send its text as `yaml`")
        return body.template
    if body.template is not None:
        raise InvalidArgument("give template or yaml, not both")
    found = parse_text(body.yaml)
    if found.base is not None and found.base.startswith("image:"):
        models.check_image(found.base.removeprefix("image:"))
    return found


@asynccontextmanager
async def _named(
    context: Context, who: Who, about: About, title: str, aliases: Sequence[str] = ()
) -> AsyncIterator[None]:
    """Around a build: claims its name and aliases. Without a name, or for an administrator, it claims nothing.

    Raises Conflict if one of them belongs to another project, whose sandboxes would begin with this build.
    """
    if not title or context.allows(who, Action.TEMPLATE_REMOVE, about):
        yield
        return
    before = await _aliases(context, title)
    names = (title, *aliases)
    try:
        for name in names:
            if not await _claim(context, who, name, before):
                hint = "choose another name, or ask an administrator to remove the template"
                raise Conflict(f"others have built a template {name!r}", hint=hint)
        yield
    finally:
        # A failed build keeps no name, and a template keeps no name that it no longer has.
        with anyio.CancelScope(shield=True):
            for name in {*names, *before}:
                await _release(context, who, name)


async def _claim(context: Context, who: Who, title: str, before: Collection[str] = ()) -> bool:
    """Whether the name is the actor's now. `before` are aliases of the template that the actor replaces."""
    if (
        context.store.accounts.owned("template", title) is None
        and title not in before
        and title in await _built(context)
    ):
        return False  # built by an administrator, or not through this server
    subject, mine = locate(context.store.accounts, who, None)
    if mine is None or not context.allows(who, Action.SANDBOX_WRITE, subject):
        return False
    provider = context.providers.default.name
    item = Belonging(kind="template", id=title, provider=provider, project_id=mine.id, name=title)
    owner = context.store.accounts.project((await context.store.ownership.claim(item)).project_id)
    return owner is not None and context.allows(who, Action.SANDBOX_WRITE, Subject(on="project", project=owner))


async def _release(context: Context, who: Actor, name: str) -> None:
    """Free a name under which nothing is built any more; a name of others stays theirs."""
    if name in await _built(context):
        return
    noted = context.store.accounts.owned("template", name)
    owner = None if noted is None else context.store.accounts.project(noted.project_id)
    if owner is None or context.allows(who, Action.SANDBOX_WRITE, Subject(on="project", project=owner)):
        await context.store.ownership.gone("template", [name])


async def _all_built(context: Context) -> Sequence[BuiltTemplate]:
    return await offering(context.providers.default).list_templates()


async def _aliases(context: Context, title: str) -> set[str]:
    """The aliases of everything that is built under a name."""
    return {alias for each in await _all_built(context) if stem(each) == title for alias in each.aliases}


async def _built(context: Context) -> set[str]:
    """Every name and alias that means a template now."""
    return {name for each in await _all_built(context) for name in (stem(each), *each.aliases)}


@router.delete("/v1/templates/{template}", slots=CHANGES, **op("Remove a built template", status=204, raises=CHANGE))
async def remove(context: Ctx, who: Who, template: Name) -> Response:
    """Answers CONFLICT while a sandbox, a snapshot or another template needs it."""
    templates, names = AsyncTemplates(context.providers.default), {template.partition(":")[0]}
    try:
        title = (await templates.show(template)).name
        names |= {title} | await _aliases(context, title)
        await templates.remove(template)
    finally:
        for name in names:
            await _release(context, who, name)
    return Response(status_code=204)
