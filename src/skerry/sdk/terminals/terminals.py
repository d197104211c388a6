"""The terminals of a sandbox."""

from __future__ import annotations

from typing import Unpack

from skerry.core import CommandNotFound, TerminalInfo
from skerry.sdk.commands.request import COLS, PLACE_OPTIONS, ROWS, Command, PlaceOptions, build, check_options
from skerry.sdk.commands.start import launch
from skerry.sdk.connection.link import Link
from skerry.sdk.processes.table import find_terminal, list_terminals
from skerry.sdk.terminals.terminal import AsyncTerminal

SHELLS = (("bash", "-l"), ("sh", "-l"))


class AsyncTerminals:
    """The terminals of a sandbox."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def create(
        self,
        command: Command | None = None,
        *,
        cols: int = COLS,
        rows: int = ROWS,
        **options: Unpack[PlaceOptions],
    ) -> AsyncTerminal:
        """Start a program on its own terminal and return once it runs; it outlives this client.

        Without a command it is a login shell: bash if the sandbox has it, else sh. `TERM` is xterm-256color unless
        `env` or the sandbox's environment says otherwise.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            QuotaExceeded: the sandbox has no room for another process or terminal.
        """
        check_options("create", options, PLACE_OPTIONS)
        choices = SHELLS if command is None else (command,)
        requests = [build(choice, foreground=False, size=(cols, rows), **options) for choice in choices]
        for request in requests[:-1]:
            try:
                stream, started = await launch(self._link, request.start)
                break
            except CommandNotFound:
                continue
        else:
            stream, started = await launch(self._link, requests[-1].start)
        stream.close()
        return AsyncTerminal(self._link, id=started.id, pid=started.pid, size=(cols, rows), view=False)

    async def list(self) -> list[TerminalInfo]:
        """The terminals that run and the last ones that ended, oldest first."""
        return await list_terminals(self._link)

    async def get(self, id: int, *, view: bool = False) -> AsyncTerminal:
        """A handle to a terminal that another client may have started.

        With `view` it never takes over, never holds the terminal back, and types nothing.

        Raises ProcessNotFound.
        """
        info = await find_terminal(self._link, id)
        return AsyncTerminal(self._link, id=info.id, pid=info.pid, size=(info.cols, info.rows), view=view)
