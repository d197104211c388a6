"""Reading what the ring buffers of a process hold, without waiting for more."""

from __future__ import annotations

from skerry.sdk.commands.exchange import Running
from skerry.sdk.commands.output import Collector, ProcessOutput
from skerry.sdk.connection.link import CONTROL_GUARD, Link
from skerry.sdk.connection.stream import Data, unheard
from skerry.wire import STDERR, STDOUT, Attach, AttachFlags

MAX_OUTPUT = 32 << 20
"""More than any ring buffer holds."""


async def read_rings(
    link: Link, id: int, since: tuple[int, int], ends: tuple[int, int], *, terminal: bool = False
) -> ProcessOutput:
    """The bytes from the offsets `since` up to at least `ends`. Raises ProcessNotFound, InvalidArgument."""
    opening = link.open(
        Attach(id=id, since_stdout=since[0], since_stderr=since[1], flags=int(AttachFlags.VIEW)),
        on_notice=unheard if terminal else None,
    )
    wanted = dict(zip((STDOUT, STDERR), ends, strict=True))
    async with opening as stream:
        running = Running(stream, "", output_limit=MAX_OUTPUT, since=since)
        running.take(await stream.next(CONTROL_GUARD))
        while running.exit is None and any(running.end(channel) < end for channel, end in wanted.items()):
            chunk = running.take(item := await stream.next(CONTROL_GUARD))
            if isinstance(item, Data) and chunk is not None:
                stream.took(item.channel, len(chunk.data))
            if any(collector.total > MAX_OUTPUT for collector in running.collectors.values()):
                raise stream.corrupt("more output than a ring buffer holds")
        out, err = _latest(running.collectors[STDOUT]), _latest(running.collectors[STDERR])
        return ProcessOutput(
            stdout=out,
            stderr=err,
            stdout_offset=running.end(STDOUT) - len(out),
            stderr_offset=running.end(STDERR) - len(err),
            gap=running.end(STDOUT) - len(out) - since[0] + running.end(STDERR) - len(err) - since[1],
        )


def _latest(collector: Collector) -> bytes:
    """What follows the last jump: bytes before it are gone from the ring buffer too."""
    data, cut = collector.value(), collector.cut
    return data if cut is None else data[cut.at :]
