"""Commands: the result at the end, or the output as it comes."""

from __future__ import annotations

from contextlib import AsyncExitStack

from fastapi import Request, Response

from skerry.core import CONTENT_TYPE, CodeResult, ExecResult, SkerryError, to_problem
from skerry.sdk import AsyncExecStream, AsyncSandbox
from skerry.server.context import Ctx, Who
from skerry.server.web import large
from skerry.server.web.describe import SANDBOX, Box, op
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import mirrored, plain
from skerry.server.web.problems import status_of
from skerry.server.web.refusals import CHECKED
from skerry.server.web.responses import NDJSON, Sender, Streamed, lines, stream_headers, wants, while_there

router = Routes("commands", raises=CHECKED)

LINES = (
    "Lines `{type: output, stream, data_base64, offset}` as the output comes, then `{type: exit, result}`;"
    " `{type: error, problem}` if it fails."
)


@router.post(SANDBOX + "/exec", **op("Run a command and wait for it", mirrored(ExecResult), also={NDJSON: LINES}))
async def exec_command(request: Request, context: Ctx, who: Who, box: Box, body: inside.RunCommand) -> Response:
    """A string goes to the shell, a list is the arguments. A non-zero exit, a signal and a timeout are results.

    If the client disconnects before the end, the command is killed with all its descendants.
    """
    stdin = inside.chosen(body.stdin, body.stdin_base64)
    context.metrics.commands["http"] += 1
    if wants(request, NDJSON):
        return lines(lambda sender: _stream(sender, box, body, stdin))

    async def run(sender: Sender) -> None:
        async with AsyncExitStack() as held:
            result = await large.collected(held, context, who, _start(box, body, stdin, body.output_limit))
            try:
                if body.check:
                    result.check()
            except SkerryError as error:
                request.scope["state"]["outcome"] = error.code
                status = status_of(error)
                await large.send(sender, context, who, to_problem(error) | {"status": status}, status, CONTENT_TYPE)
            else:
                await large.send(sender, context, who, result)

    return Streamed(run)


def _start(box: AsyncSandbox, body: inside.RunCommand, stdin: bytes | None, output_limit: int) -> AsyncExecStream:
    return box.exec_stream(
        body.command,
        cwd=body.cwd,
        env=body.env,
        timeout=body.timeout,
        user=body.user,
        sudo=body.sudo,
        stdin=stdin,
        output_limit=output_limit,
    )


async def _stream(sender: Sender, box: AsyncSandbox, body: inside.RunCommand, stdin: bytes | None) -> None:
    running = _start(box, body, stdin, 0)
    async with running:
        await sender.head(200, stream_headers(NDJSON))
        async for chunk in running:
            output = {"stream": chunk.stream, "data_base64": plain(chunk.data), "offset": chunk.offset}
            await sender.line({"type": "output", **output})
        result = await running.wait()
        await sender.line({"type": "exit", "result": result})
    if body.check:
        result.check()


@router.post(SANDBOX + "/code", **op("Run a snippet of code", mirrored(CodeResult)))
async def run_code(request: Request, context: Ctx, who: Who, box: Box, body: inside.RunCode) -> Response:
    """The language is python, javascript, typescript, bash, sh, perl or ruby; the sandbox must have it installed.

    A non-zero exit, a signal, a timeout and a lack of memory are results.
    """
    context.metrics.commands["http"] += 1
    run = box.code_run(
        body.code,
        language=body.language,
        cwd=body.cwd,
        env=body.env,
        timeout=body.timeout,
        user=body.user,
        check=body.check,
    )
    return large.gradual(context, who, await while_there(request, run))
