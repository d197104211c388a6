"""Commands about terminals: sh, attach."""

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
"""Bytes shown again by `attach`: a few screens."""

LITTLE_TIME = 600.0
"""Seconds: `sh` tells of a timeout that is nearer."""

DetachKeys = Annotated[
    str,
    typer.Option("--detach-keys", metavar="KEYS", help="Keys that leave it running, like ctrl-a,d; '' for none."),
]


def shell(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SANDBOX] [-- COMMAND...]", help="Where, and what to run.", show_default=False),
    ] = None,
    env: options.Env = None,
    user: options.User = None,
    workdir: options.Workdir = None,
    memory: options.Memory = None,
    network: options.NetworkOption = Network.NONE,
    detach_keys: DetachKeys = DETACH_KEYS,
) -> None:
    """Open a shell in a sandbox. Options go before SANDBOX.

    Without SANDBOX a new one is made, which ends with the shell; --memory and --network are for that one. A shell in
    a new sandbox with a template, an image or other limits is `skerry run --template python -- bash`.
    Ctrl-P Ctrl-Q detaches and leaves all of it running. Exits with the shell's exit code; 128+n: signal n,
    125: Skerry failed. Input that is piped in is typed, and Ctrl-D at its end.

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
                await box.keep()  # detached: it goes on
            return 0

    execute(work, output=Format.TEXT, failure=RUN_FAILED)


def attach(
    sandbox: options.SandboxName,
    terminal: Annotated[
        int | None, typer.Argument(metavar="[TERMINAL]", help="Its id; without, the only one.", show_default=False)
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Only look on: type nothing and take nothing over.")] = False,
    no_replay: Annotated[bool, typer.Option("--no-replay", help="Show only what comes.")] = False,
    detach_keys: DetachKeys = DETACH_KEYS,
) -> None:
    """Come back to a terminal, or join one in use.

    The last of its output is shown first. Exits as `skerry sh` does.

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
    """The sandbox, if there is one, and the command behind `--`. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    given = sys.argv[1:]
    if words and given[-len(words) - 1] == "--":  # the parser takes off a `--` that comes before all words
        return None, words
    if not words:
        return None, []
    if len(words) > 1 and words[1] != "--":
        raise InvalidArgument(f"{words[1]} comes after the sandbox", hint="skerry sh [OPTIONS] SANDBOX -- COMMAND…")
    return words[0], words[2:]


async def _only_terminal(box: AsyncSandbox) -> int:
    """Raises ProcessNotFound, or InvalidArgument where there is a choice."""
    from skerry.core import ExecStatus, InvalidArgument, ProcessNotFound

    running = [info for info in await box.terminals.list() if info.status is ExecStatus.RUNNING]
    if not running:
        raise ProcessNotFound(f"no terminal runs in {box.name or box.id}", hint="`skerry sh SANDBOX` opens one")
    if len(running) > 1:
        listed = "; ".join(f"{info.id}: {info.command[:60]}" for info in running)
        raise InvalidArgument(f"{len(running)} terminals run in {box.name or box.id}", hint=f"give an id of {listed}")
    return running[0].id


async def run_on_terminal(box: AsyncSandbox, job: Job) -> int | None:
    """Run `job` on a terminal that this process's own shows; the exit code, or None after detaching.

    Whatever else ends this, ends the command too. Raises what `terminals.create` raises, but for a missing program.
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
    """The exit code, or None after detaching, which says how to come back."""
    from skerry.cli.terminal.console import converse
    from skerry.cli.terminal.output import note

    exit_code = await converse(await box.terminals.get(id, view=view), keys=keys, since=since, view=view)
    if exit_code is None:
        note(f"detached; come back with: skerry attach {box.name or box.id} {id}")
    return exit_code
