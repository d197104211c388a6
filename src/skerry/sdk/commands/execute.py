"""Running one command to its end: the shortest way from a request to its result."""

from __future__ import annotations

from skerry.core import ExecResult
from skerry.sdk.commands.exchange import Running
from skerry.sdk.commands.output import TextDecoder
from skerry.sdk.commands.request import BytesCallback, Request, TextCallback, call
from skerry.sdk.connection.link import Link
from skerry.sdk.connection.stream import Data
from skerry.wire import STDERR, STDOUT


async def execute(
    link: Link, request: Request, on_stdout: TextCallback | None, on_stderr: TextCallback | None
) -> ExecResult:
    """Kills the command with all its descendants if an exception or a cancellation ends this before the command."""
    listeners = {
        channel: _Listener(callback)
        for channel, callback in ((STDOUT, on_stdout), (STDERR, on_stderr))
        if callback is not None
    }
    async with link.open(request.start) as stream:
        running = Running(stream, request.command, output_limit=request.output_limit)
        try:
            running.begin(request)
            while running.exit is None:
                item = await stream.next()
                running.take(item)
                if isinstance(item, Data):
                    if listeners and item.channel in listeners:
                        await listeners[item.channel].feed(bytes(item.data), end=item.end)
                    stream.took(item.channel, len(item.data))
            for listener in listeners.values():
                await listener.feed(b"", end=True)
        finally:
            running.close()
    return link.ran(running.result())


class _Listener:
    """A callback that gets whole characters."""

    __slots__ = ("_callback", "_decoder")

    def __init__(self, callback: TextCallback) -> None:
        self._callback, self._decoder = callback, TextDecoder()

    async def feed(self, data: bytes, *, end: bool) -> None:
        if text := self._decoder.feed(data, end=end):
            await call(self._callback, text)


async def execute_on_terminal(link: Link, request: Request, on_data: BytesCallback | None) -> ExecResult:
    """As `execute`, for a command on its own terminal."""
    async with link.open(request.start) as stream:
        running = Running(stream, request.command, output_limit=request.output_limit)
        try:
            running.begin(request)
            while running.exit is None:
                chunk = running.take(item := await stream.next())
                if chunk is not None and on_data is not None:
                    await call(on_data, chunk.data)
                if isinstance(item, Data):
                    stream.took(item.channel, len(item.data))
        finally:
            running.close()
    return link.ran(running.result())
