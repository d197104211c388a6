"""Templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Request, Response

from skerry.core.errors import InvalidArgument
from skerry.core.models import TemplateInfo
from skerry.sdk import AsyncTemplates
from skerry.sdk.building import BUILD_TIMEOUT, ProgressCallback
from skerry.server.context import Ctx
from skerry.server.following import followed, follows
from skerry.server.models import sandboxes as models
from skerry.server.models.mirror import answer, mirrored
from skerry.server.routes.parts import op
from skerry.server.routing import Routes
from skerry.server.sending import NDJSON, SSE, while_there
from skerry.templates import Template, parse_text

router = Routes("templates")

Model = mirrored(TemplateInfo)
Name = Annotated[str, Path(max_length=200, description="With or without a version.", examples=["python:3.12"])]
LINES = (
    "Lines `{type: log, text}` and `{type: progress, …}`, `{type: gap, lines}` for what a slow client missed, then"
    " `{type: done, template}` or `{type: error, problem}`."
)


@router.get("/v1/templates", **op("List templates", Model, listed=True))
async def list_templates(context: Ctx) -> Response:
    """Those that come with Skerry, built or not, and those built here, by name."""
    return answer({"items": await AsyncTemplates(context.provider).list(), "cursor": None})


@router.get("/v1/templates/{template}", **op("What a template is", Model))
async def show(context: Ctx, template: Name) -> Response:
    return answer(await AsyncTemplates(context.provider).show(template))


@router.post("/v1/templates", **op("Build a template", Model, also={NDJSON: LINES, SSE: LINES}))
async def build(request: Request, context: Ctx, body: models.Build) -> Response:
    """With all that it is based on, unless it is built. With `Accept` its log and progress come as they are made."""
    wanted = _definition(body)
    models.check_image(body.image)

    async def make(on_log: Callable[[str], object] | None, on_progress: ProgressCallback | None) -> dict[str, Any]:
        info = await AsyncTemplates(context.provider).build(
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


def _definition(body: models.Build) -> Template | str | None:
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


@router.delete("/v1/templates/{template}", **op("Remove what was built of a template", status=204))
async def remove(context: Ctx, template: Name) -> Response:
    """CONFLICT while a sandbox, a snapshot or another template needs it."""
    await AsyncTemplates(context.provider).remove(template)
    return Response(status_code=204)
