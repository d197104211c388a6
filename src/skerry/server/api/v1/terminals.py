"""Terminals for clients that poll; for others there is a WebSocket."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import Path, Query, Request, Response

from skerry.core import TerminalExit, TerminalInfo, Timeout
from skerry.sdk import TerminalOutput
from skerry.server.context import Ctx, Who
from skerry.server.web import large
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import MOST
from skerry.server.web.refusals import START
from skerry.server.web.responses import while_there

router = Routes("terminals")

Id = Annotated[int, Path(ge=1, le=MOST, description="The terminal's id.")]
Since = Annotated[int, Query(ge=0, le=MOST, description="A byte offset: `next` of the last answer.")]
WaitFor = Annotated[float, Query(gt=0, le=86400, description="Wait at most this many seconds.")]


@router.post(
    SANDBOX + "/terminals", **op("Start a program on a terminal", mirrored(TerminalInfo), status=201, raises=START)
)
async def create(context: Ctx, box: Box, body: inside.CreateTerminal) -> Response:
    """Without a command it is a login shell. The terminal outlives this request and every client."""
    context.metrics.commands["http"] += 1
    terminal = await box.terminals.create(
        body.command, cols=body.cols, rows=body.rows, cwd=body.cwd, env=body.env, user=body.user
    )
    return answer(await terminal.poll(), 201)


@router.get(SANDBOX + "/terminals", **op("List terminals", mirrored(TerminalInfo), listed=True))
async def list_terminals(box: Box) -> Response:
    """List the running terminals and the last ones that ended, oldest first."""
    return answer({"items": await box.terminals.list(), "cursor": None})


@router.get(SANDBOX + "/terminals/{id}", **op("Get the state of a terminal", mirrored(TerminalInfo)))
async def get(box: Box, id: Id) -> Response:
    return answer(await (await box.terminals.get(id, view=True)).poll())


@router.get(SANDBOX + "/terminals/{id}/output", **op("Get the output of a terminal", mirrored(TerminalOutput)))
async def output(context: Ctx, who: Who, box: Box, id: Id, since: Since = 0) -> Response:
    """The ring buffer holds 1 MiB. `gap` counts the bytes after the offset that are no longer there."""
    return large.gradual(context, who, await (await box.terminals.get(id, view=True)).output(since=since))


@router.post(SANDBOX + "/terminals/{id}/input", **op("Type into a terminal", status=204))
async def type_input(request: Request, context: Ctx, box: Box, id: Id, body: inside.TerminalInput) -> Response:
    """Waits while the terminal takes nothing. Answers CONFLICT if another client has taken over since the last time."""
    if body.takeover:
        context.terminals.drop(box, id)
    terminal = await context.terminals.get(box, id)
    await while_there(request, terminal.write(body.content()))
    return Response(status_code=204)


@router.post(SANDBOX + "/terminals/{id}/resize", **op("Change the size of a terminal", status=204))
async def resize(box: Box, id: Id, body: inside.ResizeTerminal) -> Response:
    await (await box.terminals.get(id, view=True)).resize(body.cols, body.rows)
    return Response(status_code=204)


@router.get(SANDBOX + "/terminals/{id}/wait", **op("Wait for the end of a terminal", mirrored(TerminalExit)))
async def wait(request: Request, box: Box, id: Id, timeout: WaitFor = 60.0) -> Response:
    """Answers TIMEOUT if the terminal still runs; it keeps running."""
    terminal = await box.terminals.get(id, view=True)

    async def ended() -> TerminalExit:
        with anyio.move_on_after(timeout):
            return await terminal.wait()
        raise Timeout(f"terminal {id} still runs after {timeout:g} s")

    return answer(await while_there(request, ended()))


@router.delete(SANDBOX + "/terminals/{id}", **op("Kill the program of a terminal with all its descendants", status=204))
async def close(box: Box, id: Id) -> Response:
    await (await box.terminals.get(id, view=True)).kill()
    return Response(status_code=204)
