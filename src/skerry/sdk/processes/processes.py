"""The processes of a sandbox."""

from __future__ import annotations

from typing import Unpack

from skerry.core import ProcessInfo
from skerry.sdk.commands.exec_stream import SIGKILL, send_signal
from skerry.sdk.commands.request import COMMAND_OPTIONS, Command, CommandOptions, build, check_options
from skerry.sdk.commands.start import launch
from skerry.sdk.connection.link import Link
from skerry.sdk.processes.process import AsyncProcess
from skerry.sdk.processes.table import find_process, list_processes


class AsyncProcesses:
    """The processes of a sandbox that were started through it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def spawn(
        self,
        command: Command,
        *,
        stdin: bool = False,
        **options: Unpack[CommandOptions],
    ) -> AsyncProcess:
        """Start a process in the background and return once it runs.

        A string goes to the shell, a list is the arguments. `stdin=True` gives it an input that `write_stdin` fills;
        without, it reads an empty one. It is killed with all its descendants after `timeout` seconds.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            QuotaExceeded: the sandbox has no room for another process.
        """
        check_options("spawn", options, COMMAND_OPTIONS)
        request = build(command, foreground=False, input=stdin, **options)
        stream, started = await launch(self._link, request.start)
        if stdin:
            stream.discard()
        else:
            stream.close()
        control = stream if stdin else None
        return AsyncProcess(
            self._link, id=started.id, pid=started.pid, command=request.command, view=False, control=control
        )

    async def list(self) -> list[ProcessInfo]:
        """The processes that run and the last ones that ended, oldest first."""
        return await list_processes(self._link)

    async def get(self, id: int, *, view: bool = False) -> AsyncProcess:
        """A handle to a process that another client may have started.

        With `view` it never takes over, never holds the process back, and sends no input.

        Raises ProcessNotFound.
        """
        info = await find_process(self._link, id)
        return AsyncProcess(self._link, id=info.id, pid=info.pid, command=info.command, view=view, control=None)

    async def kill(self, id: int, signal: int = SIGKILL) -> None:
        """Send a signal: SIGKILL goes to the process and all its descendants, others to its process group.

        Does nothing if the process has ended. Raises ProcessNotFound when it is not there.
        """
        await send_signal(self._link, id, signal)
