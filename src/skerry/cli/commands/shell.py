"""The commands `sh` and `attach`: terminals in sandboxes."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format, Network, parse_env
from skerry.cli.runtime import RUN_FAILED, execute

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.cli.terminal.stdio import Job

DETACH_KEYS = "ctrl-p,ctrl-q"
REPLAY = 32 * 1024
"""Bytes that `attach` shows again: a few screens."""

LITTLE_TIME = 600.0
"""Seconds: `sh` mentions a timeout that is nearer than this."""

DetachKeys = Annotated[
    str,
    typer.Option("--detach-keys", metavar="KEYS", help="Detach with these keys, like ctrl-a,d; '' for none."),
]


def shell(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SANDBOX] [-- COMMAND...]", help="The sandbox, and the command to run in it.", show_default=False
        ),
    ] = None,
    env: options.Env = None,
    user: options.User = None,
    workdir: options.Workdir = None,
    memory: options.Memory = None,
    network: options.NetworkOption = Network.NONE,
    detach_keys: DetachKeys = DETACH_KEYS,
) -> None:
    """Open a shell in a sandbox. Options go before SANDBOX.

    Without SANDBOX, Skerry makes a new one that ends with the shell; --memory and --network apply to it. For a shell in
    a new sandbox with a template, an image or other limits, use `skerry run --template python -- bash`.
    Ctrl-P Ctrl-Q detaches and leaves everything running. Exits with the shell's exit code; 128+n: signal n,
    125: Skerry failed. Piped input is sent as keystrokes, followed by Ctrl-D.

    \b
    Example:
      skerry sh
      skerry sh my-box
      skerry sh --user root my-box -- top
    """

    async def work() -> int:
        from skerry import AsyncSandbox
        from skerry.cli.commands.sandboxes import connect, tell_end
        from skerry.cli.create_options import resources
        from skerry.cli.terminal.console import local_size, parse_keys

        name, command = _split(words or [])
        keys = parse_keys(detach_keys)
        async with AsyncExitStack() as stack:
            if name is None:
                made = await AsyncSandbox.create(resources=resources(memory=memory), network=network.value)
                box = await stack.enter_async_context(made)
            else:
                box = await stack.enter_async_context(connect(name))
                info = await box.info()
                if info.expires_at is not None and info.expires_at - time.time() < LITTLE_TIME:
                    tell_end(info)
            cols, rows = local_size()
            terminal = await box.terminals.create(
                command or None, cols=cols, rows=rows, cwd=workdir, env=parse_env(env), user=user
            )
            code = await _converse(box, terminal.id, keys=keys, since=0)
            if code is not None:
                return code
            if name is None:
                await box.keep()  # detached: the sandbox stays
            return 0

    execute(work, output=Format.TEXT, failure=RUN_FAILED)


def attach(
    sandbox: options.SandboxName,
    terminal: Annotated[
        int | None,
        typer.Argument(
            metavar="[TERMINAL]", help="The terminal's id; may be left out if there is only one.", show_default=False
        ),
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Only watch: type nothing and take nothing over.")] = False,
    no_replay: Annotated[bool, typer.Option("--no-replay", help="Show only new output.")] = False,
    detach_keys: DetachKeys = DETACH_KEYS,
) -> None:
    """Return to a terminal, or join one in use.

    Shows the last part of its output first. Exits as `skerry sh` does.

    \b
    Example:
      skerry attach my-box
      skerry attach --view my-box 2
    """

    async def work() -> int:
        from skerry.cli.commands.sandboxes import connect
        from skerry.cli.terminal.console import parse_keys

        keys = parse_keys(detach_keys)
        async with connect(sandbox, start=False) as box:
            id = await _only_terminal(box) if terminal is None else terminal
            info = await (await box.terminals.get(id, view=True)).poll()
            since = -1 if no_replay else max(0, info.output_bytes - REPLAY)
            return await _converse(box, id, keys=keys, since=since, view=view) or 0

    execute(work, output=Format.TEXT, failure=RUN_FAILED)


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """The sandbox, if there is one, and the command after `--`. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    given = sys.argv[1:]
    if words and given[-len(words) - 1] == "--":  # the parser removes a `--` that comes before all words
        return None, words
    if not words:
        return None, []
    if len(words) > 1 and words[1] != "--":
        raise InvalidArgument(f"{words[1]} comes after the sandbox", hint="skerry sh [OPTIONS] SANDBOX -- COMMAND…")
    return words[0], words[2:]


async def _only_terminal(box: AsyncSandbox) -> int:
    """Raises ProcessNotFound, or InvalidArgument if there are several."""
    from skerry.core import ExecStatus, InvalidArgument, ProcessNotFound

    running = [info for info in await box.terminals.list() if info.status is ExecStatus.RUNNING]
    if not running:
        raise ProcessNotFound(f"no terminal runs in {box.name or box.id}", hint="`skerry sh SANDBOX` opens one")
    if len(running) > 1:
        listed = "; ".join(f"{info.id}: {info.command[:60]}" for info in running)
        raise InvalidArgument(
            f"{len(running)} terminals run in {box.name or box.id}", hint=f"give one of these ids: {listed}"
        )
    return running[0].id


async def run_on_terminal(box: AsyncSandbox, job: Job) -> int | None:
    """Run `job` on a terminal that this process's terminal shows; the exit code, or None after detaching.

    If anything else ends this call, it ends the command too. Raises what `terminals.create` raises, except for a
    missing program.
    """
    import anyio

    from skerry.cli.terminal.console import local_size, parse_keys
    from skerry.cli.terminal.output import print_error
    from skerry.cli.terminal.stdio import TIMED_OUT, not_run
    from skerry.core import CommandNotFound, ExecTimeout, PermissionDenied, ProcessNotFound
    from skerry.sdk import check_user

    cols, rows = local_size()
    user = check_user(job.user, sudo=job.sudo) or None
    try:
        terminal = await box.terminals.create(job.argv, cols=cols, rows=rows, cwd=job.cwd, env=job.env, user=user)
    except (CommandNotFound, PermissionDenied) as error:
        return not_run(error, output=Format.TEXT)
    ended = False
    try:
        with anyio.move_on_after(job.timeout):
            code = await _converse(box, terminal.id, keys=parse_keys(DETACH_KEYS), since=0)
            ended = True
            return code
    finally:
        if not ended:
            with anyio.CancelScope(shield=True), suppress(ProcessNotFound):
                await terminal.kill()
    told = f"{shlex.join(job.argv)} ran out of time after {job.timeout:g} s"
    print_error(told, ExecTimeout.code, ExecTimeout.hint, output=Format.TEXT)
    return TIMED_OUT


async def _converse(box: AsyncSandbox, id: int, *, keys: bytes, since: int, view: bool = False) -> int | None:
    """The exit code; None after detaching, when a note says how to return."""
    from skerry.cli.terminal.console import converse
    from skerry.cli.terminal.output import note

    exit_code = await converse(await box.terminals.get(id, view=view), keys=keys, since=since, view=view)
    if exit_code is None:
        note(f"detached; return with: skerry attach {box.name or box.id} {id}")
    return exit_code
