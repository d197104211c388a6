"""A terminal: a program on a pseudo-terminal, which outlives the client that started it."""

from __future__ import annotations

import asyncio

from skerry.core import ExecStatus, InvalidArgument, ProcessNotFound, TerminalExit, TerminalInfo
from skerry.sdk.commands.exec_stream import SIGKILL, send_signal
from skerry.sdk.commands.output import TerminalOutput
from skerry.sdk.commands.request import check_size
from skerry.sdk.connection.link import Link
from skerry.sdk.processes.ring import read_rings
from skerry.sdk.processes.table import find_terminal
from skerry.sdk.terminals.stream import AsyncTerminalStream
from skerry.wire import Empty, Resize


class AsyncTerminal:
    """A terminal. It keeps running when the handle, the connection or the client is gone.

    With nobody attached it is never held back: its last 1 MiB of output stays in a ring buffer. While `attach` is
    iterated, the terminal waits for its output to be taken. One client at a time controls it: the last that attached.
    """

    def __init__(self, link: Link, *, id: int, pid: int, size: tuple[int, int], view: bool) -> None:
        self._link = link
        self._id, self._pid, self._view = id, pid, view
        self._size = size
        self._attached: AsyncTerminalStream | None = None
        self._keyboard: AsyncTerminalStream | None = None
        self._exit: TerminalExit | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._link.sandbox_id}>"

    @property
    def id(self) -> int:
        """What `terminals.get` takes; never used again in this sandbox."""
        return self._id

    @property
    def pid(self) -> int:
        """The process id of its program inside the sandbox."""
        return self._pid

    @property
    def cols(self) -> int:
        """Columns, as this handle last knew them."""
        return self._known_size()[0]

    @property
    def rows(self) -> int:
        """Rows, as this handle last knew them."""
        return self._known_size()[1]

    def _known_size(self) -> tuple[int, int]:
        told = None if self._attached is None else self._attached.size
        return told or self._size

    def attach(self, *, since: int = 0) -> AsyncTerminalStream:
        """What the terminal shows from the byte offset `since` on (-1: only what comes), and its end.

        Takes over from the client that was attached, unless this handle only views.
        """
        stream = AsyncTerminalStream(self._link, self._id, since=_check_since(since, least=-1), view=self._view)
        if not self._view:
            if self._keyboard is not None:
                self._keyboard.let_go()
            self._keyboard, self._attached = None, stream
        return stream

    async def write(self, data: bytes | str) -> None:
        """Type `data`; waits while the terminal does not take it. Without `attach` it takes over too.

        Raises:
            InvalidArgument: this handle only views.
            Conflict: another client has taken over; `attach` takes it back.
            ProcessNotFound: the program has ended.
            ConnectionLost: some of it may have been typed.
        """
        if self._view:
            raise InvalidArgument("this handle only views", hint="get the terminal without view=True")
        await (await self._typing()).write(data)

    async def _typing(self) -> AsyncTerminalStream:
        """The stream that carries input: the one attached, else one that shows nothing."""
        loop = asyncio.get_running_loop()
        for stream in (self._attached, self._keyboard):
            if stream is not None and stream.serves(loop) and stream.exit is None:
                return stream
        # An ended terminal can be attached to as well, but what is typed there would go nowhere.
        if (await self.poll()).status is not ExecStatus.RUNNING:
            raise ProcessNotFound(f"terminal {self._id} has ended")
        self._keyboard = AsyncTerminalStream(self._link, self._id, since=-1, view=False, quiet=True)
        return self._keyboard

    async def resize(self, cols: int, rows: int) -> None:
        """Change its size; the program gets SIGWINCH, and every attached client is told.

        Raises InvalidArgument for a side that is not 1 to 10,000, ProcessNotFound when the program has ended.
        """
        check_size(cols, rows)
        await self._link.request(Resize(id=self._id, cols=cols, rows=rows), Empty)
        self._size = (cols, rows)

    async def wait(self) -> TerminalExit:
        """Wait for the end, without taking over or holding anything back.

        Raises:
            ProcessNotFound: it ended so long ago that it is forgotten.
        """
        if self._exit is None:
            async with AsyncTerminalStream(self._link, self._id, since=-1, view=True) as stream:
                async for _ in stream:
                    pass
                self._exit = stream.exit
        assert self._exit is not None
        return self._exit

    async def poll(self) -> TerminalInfo:
        """The state of the terminal now, without waiting. Raises ProcessNotFound."""
        return await find_terminal(self._link, self._id)

    async def output(self, *, since: int = 0) -> TerminalOutput:
        """What the ring buffer holds now from `since` on. Neither waits nor holds the terminal back.

        Raises ProcessNotFound, and InvalidArgument for an offset beyond the end.
        """
        start = (_check_since(since, least=0), 0)
        info = await find_terminal(self._link, self._id)
        kept = await read_rings(self._link, self._id, start, (info.output_bytes, 0), terminal=True)
        return TerminalOutput(data=kept.stdout, offset=kept.stdout_offset, gap=kept.gap)

    async def kill(self, signal: int = SIGKILL) -> None:
        """Send a signal: SIGKILL goes to the program and all its descendants, others to its process group.

        Does nothing if the program has ended. Raises ProcessNotFound when it ended so long ago that it is forgotten.
        """
        await send_signal(self._link, self._id, signal)


def _check_since(since: object, *, least: int) -> int:
    if type(since) is not int or since < least:
        raise InvalidArgument(f"since must be a byte offset, not {since!r}")
    return since
