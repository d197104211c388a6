"""Starting a process that outlives the stream it was started on."""

from __future__ import annotations

import asyncio

import anyio

from skerry.sdk.commands.exec_stream import SIGKILL, send_signal
from skerry.sdk.connection.link import Link
from skerry.sdk.connection.stream import Stream
from skerry.sdk.processes.table import first_reply
from skerry.wire import Start, Started

ABANDON_GUARD = 5.0
"""How long a cancelled start waits to kill what it has started."""


async def launch(link: Link, start: Start) -> tuple[Stream, Started]:
    """Send START and return once it runs. Raises what the agent answers, and what the link does."""
    session = await link.session()
    stream = session.open(start)
    try:
        return stream, await first_reply(link, stream, Started)
    except asyncio.CancelledError:
        # Nobody will ever have its id: it must not run on.
        with anyio.move_on_after(ABANDON_GUARD, shield=True):
            orphan = await first_reply(link, stream, Started)
            stream.close()
            await send_signal(link, orphan.id, SIGKILL)
        raise
