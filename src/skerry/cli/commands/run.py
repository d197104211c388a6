"""The commands `run`, `exec` and `kill`: programs in sandboxes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

from skerry.cli import options
from skerry.cli.create_options import Given, with_options
from skerry.cli.declare import Argument, Option
from skerry.cli.options import Format, parse_env
from skerry.cli.runtime import RUN_FAILED, execute
from skerry.cli.terminal.build_display import build_display
from skerry.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.cli.terminal.stdio import Job

CommandLine = Annotated[
    list[str], Argument(metavar="-- COMMAND...", help="The program and its arguments.", show_default=False)
]


@with_options(
    *("template", "image", "source", "env", "lifetime", "name"),
    *("memory", "cpu", "pids", "disk", "volume", "network", "encrypted"),
)
def run(
    command: CommandLine,
    given: Given,
    timeout: options.CommandTimeout = None,
    user: options.User = None,
    sudo: options.Sudo = False,
    workdir: options.Workdir = None,
    interactive: options.Interactive = False,
    tty: options.Tty = False,
    keep: Annotated[bool, Option("--keep", help="Leave the sandbox running; its id goes to stderr.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Run a command in a new sandbox, then remove the sandbox.

    The command's output is streamed, and piped input goes to the command. Ctrl-C ends the command and removes the
    sandbox. -o json prints the result when the command has ended.

    On a terminal, the command gets a terminal too, as with `skerry sh`: Ctrl-C goes to the command, and Ctrl-P Ctrl-Q
    leaves it and its sandbox running. If stdin, stdout or stderr is a file or a pipe, it gets none unless you pass -t.

    \b
    Example:
      skerry run --timeout 10 --memory 256MB -- python3 -c 'print(6 * 7)'
      echo hello | skerry run -- tr a-z A-Z
      skerry run --template python -- bash

    \b
    Exit codes:
      the exit code of the command, or
      124  it ran out of time
      125  Skerry itself failed
      126  it cannot be executed
      127  there is no such program
      137  it ran out of memory
      128+n  signal n ended it
    """

    async def work() -> int:
        from skerry import AsyncSandbox
        from skerry.cli.terminal.stdio import Job, run_job

        on_terminal = _on_terminal(command, tty=tty, output=output)
        own = workdir is not None and workdir.startswith("/")  # in the new sandbox: made if it does not exist
        cwd = None if own else workdir
        job = Job(argv=command, timeout=timeout, user=user, sudo=sudo, cwd=cwd, interactive=interactive)
        async with AsyncExitStack() as stack:
            with build_display(output=output, logs=False) as display:
                sandbox = await AsyncSandbox.create(
                    **given(), workdir=workdir if own else None, on_progress=display.on_progress
                )
            if keep:
                stack.push_async_callback(sandbox.close)
                note(f"sandbox: {sandbox.id}")
            else:
                await stack.enter_async_context(sandbox)
            if not on_terminal:
                return await run_job(sandbox, job, output=output)
            from skerry.cli.commands.shell import run_on_terminal

            code = await run_on_terminal(sandbox, job)
            if code is None and not keep:
                await sandbox.keep()  # detached: the sandbox stays
            return code or 0

    execute(work, output=output, failure=RUN_FAILED)


def exec_(
    sandbox: options.SandboxName,
    command: CommandLine,
    env: options.Env = None,
    timeout: options.CommandTimeout = None,
    user: options.User = None,
    sudo: options.Sudo = False,
    workdir: options.Workdir = None,
    interactive: options.Interactive = False,
    tty: options.Tty = False,
    detach: Annotated[
        bool, Option("--detach", "-d", help="Leave it running in the background and print its id.")
    ] = False,
    no_start: Annotated[
        bool, Option("--no-start", help="Refuse a sandbox that is stopped or paused instead of starting it.")
    ] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Run a command in a sandbox that exists.

    A sandbox that does not run is started. Options go before SANDBOX.

    The command's output is streamed, and piped input goes to it. Ctrl-C ends the command and leaves the sandbox.

    On a terminal, the command gets a terminal too, as with `skerry sh`: Ctrl-C goes to the command, and Ctrl-P Ctrl-Q
    leaves it running. If stdin, stdout or stderr is a file or a pipe, it gets none unless you pass -t.

    \b
    Example:
      skerry exec my-box -- ls -l
      skerry exec my-box -- python3
      skerry exec --detach my-box -- python3 -m http.server

    \b
    Exit codes:
      those of `skerry run`; with --detach, 0 once the command has started
    """

    async def work() -> int:
        from skerry.cli.commands.sandboxes import connect
        from skerry.cli.terminal.stdio import Job, run_job
        from skerry.core import InvalidArgument

        if detach and (tty or interactive):
            raise InvalidArgument(
                "--detach cannot be combined with -i or -t", hint="`skerry sh` and Ctrl-P Ctrl-Q do both"
            )
        on_terminal = not detach and _on_terminal(
            [sandbox, *command] if "--" in command[1:] else command, tty=tty, output=output
        )
        job = Job(
            argv=_command(command),
            timeout=timeout,
            user=user,
            sudo=sudo,
            cwd=workdir,
            env=parse_env(env),
            interactive=interactive,
        )
        async with connect(sandbox, start=not no_start) as box:
            if detach:
                return await _detach(box, job, output=output)
            if on_terminal:
                from skerry.cli.commands.shell import run_on_terminal

                return await run_on_terminal(box, job) or 0
            return await run_job(box, job, output=output)

    execute(work, output=output, failure=RUN_FAILED)


def kill(
    sandbox: options.SandboxName,
    process: options.ProcessId = None,
    signal: Annotated[
        str,
        Option(
            "--signal", "-s", metavar="SIGNAL", help="Send this signal, by name or number; KILL goes to the whole tree."
        ),
    ] = "KILL",
    output: options.Output = Format.TEXT,
) -> None:
    """Kill a background process, or all of them. The sandbox keeps running; `skerry rm` removes it.

    KILL goes to the process and all its descendants, another signal to its process group. Prints the ids.

    \b
    Example:
      skerry kill my-box 3
      skerry kill --signal TERM my-box

    \b
    Exit codes:
      0  success, also when nothing was running any more
        1  there is no such PROCESS
    """

    async def work() -> None:
        from skerry.cli.commands.sandboxes import connect
        from skerry.core import ExecStatus

        number = _signal(signal)
        async with connect(sandbox, start=False) as box:
            known = await box.processes.list()
            killed = [info.id for info in known if info.status is ExecStatus.RUNNING and process in (None, info.id)]
            for id in killed or ([] if process is None else [process]):
                await box.processes.kill(id, number)
        if output is Format.JSON:
            print_json({"killed": killed})
        else:
            say(*(map(str, killed) if killed else ["nothing was running"]))

    execute(work, output=output)


def _on_terminal(words: list[str], *, tty: bool, output: Format) -> bool:
    """Whether the command gets a terminal: -t asks for one, or stdin, stdout and stderr are. Raises InvalidArgument."""
    import os

    from skerry.core import InvalidArgument

    if not tty:
        return output is Format.TEXT and all(os.isatty(fd) for fd in (0, 1, 2))
    if "--" in words[1:] and words[0].replace(".", "", 1).isdecimal():
        raise InvalidArgument(f"-t asks for a terminal: {words[0]} is not its value", hint=f"--timeout {words[0]}")
    if output is Format.JSON:
        raise InvalidArgument(
            "-t cannot be combined with -o json", hint="leave out -t: the output of a terminal is not collected"
        )
    if not os.isatty(0):
        hint = "leave out -t; the command then reads the piped input"
        raise InvalidArgument("-t needs a terminal, and stdin is not one", hint=hint)
    return True


def _command(words: list[str]) -> list[str]:
    """The command after SANDBOX, with or without a `--` before it. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    if words[0] == "--":
        words = words[1:]
    elif words[0].startswith("-"):
        raise InvalidArgument(
            f"{words[0]} comes after the sandbox", hint="options go before it: skerry exec -d SANDBOX …"
        )
    if not words:
        raise InvalidArgument("there is no command to run", hint="skerry exec SANDBOX -- COMMAND…")
    return words


def _signal(text: str) -> int:
    """The number of a signal given as 9, KILL or SIGKILL. Raises InvalidArgument."""
    import signal

    from skerry.core import InvalidArgument

    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and 0 < int(name) <= 64:
        return int(name)
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        raise InvalidArgument(f"{text!r} is not a signal", hint="such as TERM, KILL, INT or 9") from None


async def _detach(sandbox: AsyncSandbox, job: Job, *, output: Format) -> int:
    process = await sandbox.processes.spawn(
        job.argv, cwd=job.cwd, env=job.env, timeout=job.timeout, user=job.user, sudo=job.sudo
    )
    if output is Format.JSON:
        print_json({"sandbox": sandbox.id, "process": process.id, "pid": process.pid})
    else:
        say(str(process.id))
    return 0
