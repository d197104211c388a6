"""The variables that later commands of a sandbox get."""

from __future__ import annotations

from fastapi import Response

from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer
from skerry.server.web.models.types import Answer

router = Routes("environment")


class Environment(Answer):
    """All variables by name."""

    env: dict[str, str]
    """The variables."""


@router.get(SANDBOX + "/env", **op("Get all variables", Environment))
async def get(box: Box) -> Response:
    return answer({"env": await box.env.all()})


@router.patch(SANDBOX + "/env", **op("Set and remove variables", Environment))
async def change(box: Box, body: inside.ChangeEnvironment) -> Response:
    """Later commands see the change; running ones do not. The answer has all variables after it."""
    if body.set:
        await box.env.set(body.set)
    if body.unset:
        await box.env.unset(*body.unset)
    return answer({"env": await box.env.all()})
