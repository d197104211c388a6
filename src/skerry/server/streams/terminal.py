"""A terminal for browsers, in the framing of `browser.py`.

Down there is also the text `{"type": "state" | "exit" | "error", …}`. Up, binary messages are typed, and text is
`{"type": "resize", "cols": n, "rows": n}`. The terminal lives in the sandbox's agent: a browser that returns with
`?since=` and its last offset gets what follows, even if this server was restarted in between.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.websockets import WebSocket

from skerry.core import Conflict, InvalidArgument, ProcessNotFound, SkerryError, State
from skerry.sdk import AsyncTerminal, AsyncTerminalStream
from skerry.server.context import About, Context, Ctx, Sandbox, Who
from skerry.server.streams.browser import STDOUT, Browser, Ended, admit, ignore_disconnect
from skerry.server.web.guard import Routes

router = Routes("streams")
PATH = "/v1/sandboxes/{sandbox}/terminals/{terminal}"
Mode = Literal["control", "view", "takeover"]
Offset = Annotated[int, Query(ge=-1, le=2**62, description="The offset of the next byte; -1: only new output.")]
Side = Annotated[int | None, Query(ge=1, le=10_000)]


@router.websocket(PATH)
async def terminal(
    socket: WebSocket,
    context: Ctx,
    actor: Who,
    subject: About,
    sandbox: Sandbox,
    terminal: Annotated[int, "its id"],
    since: Offset = 0,
    cols: Side = None,
    rows: Side = None,
    mode: Mode = "control",
) -> None:
    # The client that opens it last takes over control. A client that lost control returns with mode=view.
    view = mode == "view"
    action = await admit(context, actor, subject, view=view, operation=f"WS {PATH}")
    box = await sandbox.use(auto_start=False)
    await check_runs(context, sandbox)
    handle = await box.terminals.get(terminal, view=view)
    async with handle.attach(since=since) as stream:
        if cols is not None and rows is not None and not view:
            await _resize(handle, cols, rows)
        await socket.accept()
        browser = Browser(socket, {STDOUT: since})
        with ignore_disconnect():
            await browser.run(_Terminal(handle, stream, browser), context, actor, subject, action)


async def check_runs(context: Context, sandbox: Sandbox) -> None:
    """A terminal does not outlive a stop, so the sandbox is not started for one."""
    info = await context.provider_of(sandbox).get(sandbox.id)
    if info.state is not State.RUNNING:
        raise ProcessNotFound(f"the sandbox is {info.state}: its terminals are gone")


async def _resize(handle: AsyncTerminal, cols: int, rows: int) -> None:
    try:
        await handle.resize(cols, rows)
    except ProcessNotFound:
        pass  # it has ended: its output can still be read


class _Terminal:
    def __init__(self, handle: AsyncTerminal, stream: AsyncTerminalStream, browser: Browser) -> None:
        self._handle, self._stream, self._browser = handle, stream, browser

    async def down(self) -> Ended:
        try:
            async for chunk in self._stream:
                await self._browser.show(STDOUT, chunk.offset, chunk.data)
            exit = self._stream.exit
            assert exit is not None
            how = {"exit_code": exit.exit_code, "signal": exit.signal, "status": exit.status}
            await self._browser.tell({"type": "exit", **how, "offset": self._browser.shown(STDOUT)})
        except SkerryError as error:
            return Ended(4503, error)
        return Ended()

    async def news(self) -> None:
        """Report the size and who controls it, now and at every change."""
        told: tuple[Any, ...] = ()
        while True:
            now = (self._stream.size, self._stream.controls)
            if now != told:
                told = now
                cols, rows = self._stream.size or (None, None)
                await self._browser.tell({"type": "state", "cols": cols, "rows": rows, "controls": now[1]})
            await self._stream.changed()
            if self._stream.exit is not None:
                return

    async def take(self, message: bytes | dict[str, Any]) -> None:
        try:
            if isinstance(message, bytes):
                await self._stream.write(message)
            elif message.get("type") == "resize":
                cols, rows = message.get("cols"), message.get("rows")
                if not isinstance(cols, int) or not isinstance(rows, int):
                    raise InvalidArgument("a size is two whole numbers")
                if not self._stream.controls:  # a browser may resize before it knows of the take-over
                    raise Conflict("another client controls the terminal", hint="open it again to take it back")
                await self._handle.resize(cols, rows)
            else:
                raise InvalidArgument("a message is an ack, a resize or bytes")
        except (Conflict, ProcessNotFound) as error:  # taken over, or ended: the stream continues
            await self._browser.tell_error(error)
