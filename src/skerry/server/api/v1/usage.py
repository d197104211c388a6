"""Usage and health of a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from skerry.core import Usage
from skerry.sdk import HealthReport, SandboxStatus
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import Answer
from skerry.server.web.refusals import START
from skerry.server.web.responses import while_there

router = Routes("status", raises=START)


class Ready(Answer):
    """Whether a command would run now."""

    ready: bool
    """Whether it would."""


class Instructions(Answer):
    """A text for an agent's system prompt."""

    instructions: str
    """The text."""


@router.get(SANDBOX + "/usage", **op("Get what a sandbox uses now", mirrored(Usage)))
async def usage(box: Box) -> Response:
    return answer(await box.usage())


@router.get(SANDBOX + "/status", **op("Get state, uptime and usage", mirrored(SandboxStatus)))
async def status(box: Box) -> Response:
    return answer(await box.status())


@router.get(SANDBOX + "/ready", **op("Check whether a command would run now", Ready))
async def ready(box: Box) -> Response:
    return answer({"ready": await box.is_ready()})


@router.get(SANDBOX + "/health", **op("Run the built-in health checks", mirrored(HealthReport)))
async def health(
    request: Request,
    box: Box,
    timeout: Annotated[float, Query(gt=0, le=600, description="Give each check this many seconds.")] = 10.0,
) -> Response:
    return answer(await while_there(request, box.health_check(timeout=timeout)))


@router.post(SANDBOX + "/health", **op("Run the built-in health checks and yours", mirrored(HealthReport)))
async def check_health(request: Request, box: Box, body: models.RunChecks) -> Response:
    """Each of your checks is a shell command that must exit with 0."""
    return answer(await while_there(request, box.health_check(body.checks, timeout=body.timeout)))


@router.get(SANDBOX + "/instructions", **op("Get a text for an agent on how this sandbox works", Instructions))
async def instructions(
    request: Request,
    box: Box,
    extra: Annotated[str | None, Query(max_length=8000, description="A text to add at the end.")] = None,
) -> Response:
    return answer({"instructions": await while_there(request, box.instructions(extra=extra))})
