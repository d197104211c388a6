"""A background process for browsers, in the framing of `browser.py`: two channels down, its input up.

Down there is also the text `{"type": "exit" | "error"}`. Up, `{"type": "eof"}` ends its input.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.websockets import WebSocket

from skerry.core import InvalidArgument, ProcessNotFound, SkerryError
from skerry.sdk import AsyncExecStream, AsyncProcess
from skerry.server.context import About, Ctx, Sandbox, Who
from skerry.server.streams.browser import STDERR, STDOUT, Browser, Ended, admit, ignore_disconnect
from skerry.server.streams.terminal import check_runs
from skerry.server.web.guard import Routes

router = Routes("streams")
PATH = "/v1/sandboxes/{sandbox}/processes/{process}"
Offset = Annotated[int, Query(ge=-1, le=2**62)]
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


@router.websocket(PATH)
async def process(
    socket: WebSocket,
    context: Ctx,
    actor: Who,
    subject: About,
    sandbox: Sandbox,
    process: Annotated[int, "its id"],
    since: Offset = 0,
    since_stderr: Offset | None = None,
    mode: Literal["control", "view"] = "control",
) -> None:
    view = mode == "view"
    action = await admit(context, actor, subject, view=view, operation=f"WS {PATH}")
    await check_runs(context, sandbox)
    # A viewer starts nothing; a controller shares the handle of the requests that send input.
    box = await sandbox.use(auto_start=not view)
    handle = await box.processes.get(process, view=True) if view else await context.processes.get(box, process)
    start = (since, since if since_stderr is None else since_stderr)
    async with handle.attach(since=since if since_stderr is None else start, output_limit=0) as stream:
        await socket.accept()
        browser = Browser(socket, dict(zip((STDOUT, STDERR), start, strict=True)))
        with ignore_disconnect():
            await browser.run(_Process(handle, stream, browser), context, actor, subject, action)


class _Process:
    def __init__(self, handle: AsyncProcess, stream: AsyncExecStream, browser: Browser) -> None:
        self._handle, self._stream, self._browser = handle, stream, browser

    async def down(self) -> Ended:
        try:
            async for chunk in self._stream:
                await self._browser.show(_CHANNELS[chunk.stream], chunk.offset, chunk.data)
            result = await self._stream.wait()
            how = {"exit_code": result.exit_code, "signal": result.signal, "status": result.status}
            await self._browser.tell({"type": "exit", **how})
        except SkerryError as error:
            return Ended(4503, error)
        return Ended()

    async def news(self) -> None:
        """A process has no other changes to report."""

    async def take(self, message: bytes | dict[str, Any]) -> None:
        try:
            if isinstance(message, bytes):
                await self._handle.write_stdin(message)
            elif message.get("type") == "eof":
                await self._handle.close_stdin()
            else:
                raise InvalidArgument("a message is an ack, an eof or bytes")
        except ProcessNotFound as error:
            await self._browser.tell_error(error)
