"""TCP ports inside a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response

from skerry.core import ListeningPort
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.responses import while_there

router = Routes("ports")


@router.get(
    SANDBOX + "/ports", **op("List the ports that programs inside listen on", mirrored(ListeningPort), listed=True)
)
async def list_ports(box: Box) -> Response:
    return answer({"items": await box.ports.list(), "cursor": None})


@router.get(
    SANDBOX + "/ports/{port}/wait", **op("Wait until a program inside listens on a port", mirrored(ListeningPort))
)
async def wait(
    request: Request,
    box: Box,
    port: Annotated[int, Path(ge=1, le=65535, description="The port's number.")],
    timeout: Annotated[float, Query(ge=0, le=86400, description="Wait at most this many seconds.")] = 30.0,
) -> Response:
    return answer(await while_there(request, box.ports.wait(port, timeout=timeout)))
