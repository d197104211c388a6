"""Commands: run and waited for, or their output as it comes."""

from __future__ import annotations

from fastapi import Request, Response

from skerry.core.models import CodeResult, ExecResult
from skerry.sdk import AsyncSandbox
from skerry.server.models import work
from skerry.server.models.mirror import answer, mirrored, plain
from skerry.server.routes.parts import SANDBOX, Box, op
from skerry.server.routing import Routes
from skerry.server.sending import NDJSON, Sender, lines, stream_headers, wants, while_there

router = Routes("commands")

LINES = (
    "Lines `{type: output, stream, data_base64, offset}` as the output comes, then `{type: exit, result}`;"
    " `{type: error, problem}` where it fails."
)


@router.post(SANDBOX + "/exec", **op("Run a command and wait for it", mirrored(ExecResult), also={NDJSON: LINES}))
async def exec_command(request: Request, box: Box, body: work.Exec) -> Response:
    """A string goes to the shell, a list is the arguments. A non-zero exit, a signal and a timeout are results.

    The command is killed with all its descendants when the client goes before its end.
    """
    stdin = work.chosen(body.stdin, body.stdin_base64)
    if wants(request, NDJSON):
        return lines(lambda sender: _stream(sender, box, body, stdin))
    result = await while_there(
        request,
        box.exec(
            body.command,
            cwd=body.cwd,
            env=body.env,
            timeout=body.timeout,
            user=body.user,
            sudo=body.sudo,
            stdin=stdin,
            check=body.check,
            output_limit=body.output_limit,
        ),
    )
    return answer(result)


async def _stream(sender: Sender, box: AsyncSandbox, body: work.Exec, stdin: bytes | None) -> None:
    running = box.exec_stream(
        body.command,
        cwd=body.cwd,
        env=body.env,
        timeout=body.timeout,
        user=body.user,
        sudo=body.sudo,
        stdin=stdin,
        output_limit=0,
    )
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
async def run_code(request: Request, box: Box, body: work.Code) -> Response:
    """In python, javascript, bash, sh, perl or ruby, with what the sandbox has installed for it.

    A non-zero exit, a signal, a timeout and the lack of memory are results.
    """
    run = box.code_run(
        body.code,
        language=body.language,
        cwd=body.cwd,
        env=body.env,
        timeout=body.timeout,
        user=body.user,
        check=body.check,
    )
    return answer(await while_there(request, run))
