"""Background processes of a sandbox."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import Path, Query, Request, Response

from skerry.core import ExecResult, ProcessInfo, Timeout
from skerry.sdk import ProcessOutput
from skerry.server.context import Ctx, Who
from skerry.server.web import large
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import MOST
from skerry.server.web.refusals import START
from skerry.server.web.responses import while_there

router = Routes("processes")

Id = Annotated[int, Path(ge=1, le=MOST, description="The process's id, not its pid.")]
Since = Annotated[int, Query(ge=0, le=MOST, description="A byte offset in the stream: `next` of the last answer.")]
WaitFor = Annotated[float, Query(gt=0, le=86400, description="Wait at most this many seconds.")]


@router.post(
    SANDBOX + "/processes", **op("Start a process in the background", mirrored(ProcessInfo), status=201, raises=START)
)
async def spawn(context: Ctx, box: Box, body: inside.SpawnProcess) -> Response:
    """The process outlives this request and every client. After `timeout` seconds it is killed with its descendants."""
    context.metrics.commands["http"] += 1
    process = await box.processes.spawn(
        body.command,
        cwd=body.cwd,
        env=body.env,
        timeout=body.timeout,
        user=body.user,
        sudo=body.sudo,
        stdin=body.stdin,
    )
    context.processes.keep(box, process.id, process)
    return answer(await process.poll(), 201)


@router.get(SANDBOX + "/processes", **op("List processes", mirrored(ProcessInfo), listed=True))
async def list_processes(box: Box) -> Response:
    """List the running processes and the last ones that ended, oldest first."""
    return answer({"items": await box.processes.list(), "cursor": None})


@router.get(SANDBOX + "/processes/{id}", **op("Get the state of a process", mirrored(ProcessInfo)))
async def get(box: Box, id: Id) -> Response:
    return answer(await (await box.processes.get(id, view=True)).poll())


@router.get(SANDBOX + "/processes/{id}/output", **op("Get the output of a process", mirrored(ProcessOutput)))
async def output(
    context: Ctx, who: Who, box: Box, id: Id, since_stdout: Since = 0, since_stderr: Since = 0
) -> Response:
    """The ring buffers hold 1 MiB of each stream. `gap` counts the bytes after the offset that are no longer there."""
    process = await box.processes.get(id, view=True)
    return large.gradual(context, who, await process.output(since=(since_stdout, since_stderr)))


@router.post(SANDBOX + "/processes/{id}/stdin", **op("Send input to a process", status=204))
async def stdin(request: Request, context: Ctx, box: Box, id: Id, body: inside.ProcessInput) -> Response:
    """The process must have been started with `stdin`. The request waits while the process does not read."""
    process = await context.processes.get(box, id)

    async def send() -> None:
        if data := body.content():
            await process.write_stdin(data)
        if body.close:
            await process.close_stdin()

    await while_there(request, send())
    return Response(status_code=204)


@router.post(SANDBOX + "/processes/{id}/signal", **op("Send a signal to a process", status=204))
async def signal(box: Box, id: Id, body: inside.SendSignal) -> Response:
    """SIGKILL (9) goes to the process and all its descendants, other signals to its process group."""
    await box.processes.kill(id, body.signal)
    return Response(status_code=204)


@router.get(SANDBOX + "/processes/{id}/wait", **op("Wait for the end of a process", mirrored(ExecResult)))
async def wait(request: Request, context: Ctx, who: Who, box: Box, id: Id, timeout: WaitFor = 60.0) -> Response:
    """The result has the output that is still there. Answers TIMEOUT if the process still runs; it keeps running."""
    process = await box.processes.get(id, view=True)

    async def ended() -> ExecResult:
        with anyio.move_on_after(timeout):
            return await process.wait()
        raise Timeout(f"process {id} still runs after {timeout:g} s")

    return large.gradual(context, who, await while_there(request, ended()))


@router.delete(SANDBOX + "/processes/{id}", **op("Kill a process with all its descendants", status=204))
async def kill(box: Box, id: Id) -> Response:
    await box.processes.kill(id)
    return Response(status_code=204)
