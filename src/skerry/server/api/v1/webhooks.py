"""The webhooks of a project."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Path, Request
from pydantic import Field

from skerry.core import NotFound, QuotaExceeded
from skerry.server.context import Ctx, InProject, Who, note_made
from skerry.server.jobs.webhooks import check_url
from skerry.server.store import Webhook
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer, Body

router = Routes("webhooks")
WebhookPath = Annotated[str, Path(description="The id of the webhook.")]

MOST = 20


class WebhookModel(Answer):
    id: str
    """Its id."""
    url: str
    """Where events are sent."""
    types: list[str]
    """The types of events that are sent; empty: all."""
    created_by: str
    """Who made it."""
    created_at: float
    """When it was made."""
    last_status: str
    """The status of the last answer, or what went wrong."""
    attempts: int
    """How often the server has tried to send the next event."""
    dropped: int
    """How many events were dropped after all attempts."""


class WebhookList(Answer):
    items: list[WebhookModel]
    """The webhooks."""
    cursor: str | None = None
    """Always null."""


class CreateWebhook(Body):
    url: Annotated[str, Field(max_length=2000)]
    """Where to send events."""
    types: Annotated[list[Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]], Field(max_length=50)] = Field(default=[])
    """The types of events to send; empty: all."""


class NewWebhook(WebhookModel):
    secret: str
    """The secret that signs its messages."""


def _model(webhook: Webhook) -> WebhookModel:
    return WebhookModel(
        id=webhook.id,
        url=webhook.url,
        types=list(webhook.types),
        created_by=webhook.created_by,
        created_at=webhook.created_at,
        last_status=webhook.last_status,
        attempts=webhook.attempts,
        dropped=webhook.dropped,
    )


@router.get("/v1/projects/{project}/webhooks")
async def list_(context: Ctx, project: InProject) -> WebhookList:
    """List the webhooks of a project."""
    return WebhookList(items=[_model(webhook) for webhook in await context.store.webhooks.of_project(project.id)])


@router.post("/v1/projects/{project}/webhooks", status_code=201, raises=("QUOTA_EXCEEDED",))
async def create(request: Request, context: Ctx, who: Who, project: InProject, body: CreateWebhook) -> NewWebhook:
    """Send the project's events from now on to an address, each as a signed POST."""
    if len(await context.store.webhooks.of_project(project.id)) >= MOST:
        raise QuotaExceeded(f"a project has at most {MOST} webhooks")
    secret = f"whsec_{secrets.token_urlsafe(32)}"
    made = await context.store.webhooks.add(
        project.id,
        check_url(body.url),
        secret,
        tuple(body.types),
        created_by=who.name,
        since=await context.store.events.last(),
    )
    note_made(request, "webhook", made.id)
    return NewWebhook(**_model(made).model_dump(), secret=secret)


@router.delete("/v1/projects/{project}/webhooks/{webhook}", status_code=204)
async def remove(context: Ctx, project: InProject, webhook: WebhookPath) -> None:
    """Remove a webhook."""
    if not await context.store.webhooks.remove(project.id, webhook):
        raise NotFound(f"there is no webhook {webhook[:100]!r}")
