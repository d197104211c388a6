"""The commands `create`, `ps`, `info`, `rm` and `gc`: sandboxes as a whole."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from skerry.cli import options
from skerry.cli.create_options import OPTIONS, Given, with_options
from skerry.cli.declare import Argument, Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.build_display import build_display
from skerry.cli.terminal.output import ago, duration, note, print_error, print_json, print_table, say, size

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.core import SandboxInfo, VolumeMount


@with_options(*OPTIONS)
def create(given: Given, output: options.Output = Format.TEXT) -> None:
    """Create a sandbox and print its id. Stderr says when it times out.

    At the end of its lifetime, a sandbox with a name is stopped and keeps its files; `skerry start`, or the next
    command in it, starts it again with its full lifetime. A sandbox without a name is destroyed. --on-timeout chooses.

    \b
    Example:
      skerry create --name my-box --memory 1GB --lifetime 600
      skerry create --snapshot before-upgrade
      skerry create --template react-ts
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        with build_display(output=output, logs=False) as display:
            sandbox = await AsyncSandbox.create(**given(), on_progress=display.on_progress)
        try:
            await print_made(sandbox, output)
        finally:
            await sandbox.close()

    execute(work, output=output)


def ps(
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the ids.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """List the sandboxes, oldest first.

    \b
    Example:
      skerry ps
      skerry rm $(skerry ps -q)
    """

    async def work() -> None:
        found = await _list()
        if output is Format.JSON:
            print_json(found)
        elif quiet:
            for info in found:
                say(info.id)
        elif not found:
            note("no sandboxes")
        else:
            print_table(
                ("ID", "NAME", "STATE", "AGE", "EXPIRES", "MEMORY", "TEMPLATE"),
                [
                    (
                        info.id,
                        info.name or "-",
                        info.state.value,
                        ago(info.created_at),
                        _expires(info),
                        size(info.resources.memory),
                        info.template,
                    )
                    for info in found
                ],
            )

    execute(work, output=output)


def info(sandbox: options.SandboxName, output: options.Output = Format.TEXT) -> None:
    """Show everything about a sandbox: state, limits, what it uses.

    \b
    Example:
      skerry info my-box -o json
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        box = await AsyncSandbox.find(sandbox)
        try:
            found = await box.info()
            usage = (await box.status()).usage
        finally:
            await box.close()
        if output is Format.JSON:
            print_json(asdict(found) | {"usage": usage})
            return
        limits = found.resources
        lines = {
            "id": found.id,
            "name": found.name or "-",
            "state": found.state.value + (f" ({found.reason})" if found.reason else ""),
            "provider": f"{found.provider}, isolation {found.isolation}",
            "template": found.template,
            "created": f"{ago(found.created_at)} ago",
            "expires": _expires(found),
            "leased to": "-" if found.leased_to is None else f"process {found.leased_to}",
            "network": found.network,
            "user": f"{found.user} in {found.workdir}",
            "env": " ".join(found.env_names) or "-",
            "limits": f"{limits.cpu:g} cores, {size(limits.memory)} of memory, {limits.pids} processes, "
            + (f"{size(limits.disk)} of disk" if limits.disk else "no limit of disk"),
            "volumes": " ".join(map(_mount, found.volumes)) or "-",
            "disk": "encrypted" if found.encrypted else "not encrypted",
        }
        if usage is not None:
            lines["cpu used"] = f"{usage.cpu_seconds:.2f} s"
            lines["memory used"] = size(usage.memory_used)
            lines["disk used"] = size(usage.disk_used)
            lines["processes"] = str(usage.pids)
        for label, value in lines.items():
            say(f"{label + ':':<12} {value}")

    execute(work, output=output)


def rm(
    sandboxes: Annotated[
        list[str] | None,
        Argument(metavar="SANDBOX...", help="The ids or names of sandboxes.", show_default=False),
    ] = None,
    all: Annotated[
        bool, Option("--all", "-a", help="Destroy all on this machine; over a server, all of your project.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before --all destroys.")] = False,
    graceful: Annotated[bool, Option("--graceful", help="Ask their processes to end first.")] = False,
    timeout: Annotated[
        Seconds, Option("--timeout", "-t", metavar="TIME", help="Let --graceful wait this long, such as 2m.")
    ] = Seconds(30),
    output: options.Output = Format.TEXT,
) -> None:
    """Destroy sandboxes with everything in them; print their ids.

    --all says how many sandboxes of whom it destroys, and asks. Where nobody can answer, it needs --yes.

    \b
    Example:
      skerry rm my-box
      skerry rm --graceful --timeout 10 my-box
      skerry rm --all
      skerry rm --all --yes

    \b
    Exit codes:
      0  all of them are gone
      1  one did not exist, and the others are gone; or the answer to --all was no
      2  --all without --yes, where nobody can answer
    """
    if bool(sandboxes) == all:
        import typer

        raise typer.BadParameter("give sandboxes, or --all")

    async def work() -> int:
        from skerry.core import SandboxNotFound

        names, removed, failed = sandboxes or [], [], 0
        if all:
            found, whose = await _all()
            names = [info.id for info in found]
            if names and not yes and (code := await _refused(found, whose, output)):
                return code
        for name in names:
            try:
                removed.append(await _destroy(name, timeout if graceful else None))
            except SandboxNotFound as error:
                if not all:  # with --all, a sandbox that has just ended is not an error
                    print_error(error.message, error.code, error.hint, output=output)
                    failed = 1
            else:
                if output is Format.TEXT:
                    say(removed[-1])
        if output is Format.JSON:
            print_json({"removed": removed})
        return failed

    execute(work, output=output)


async def _all() -> tuple[list[SandboxInfo], str]:
    """The sandboxes that --all means, and where they are: over a server, those of one project."""
    from anyio.to_thread import run_sync

    from skerry.core import registry

    if registry.default() != "remote":
        return await _list(), "on this machine"
    from skerry.http import Client, Request, find_login

    def own() -> str:
        login = find_login()
        if login.project is not None:
            return login.project
        with Client(login) as client:  # lists the user's own project first
            return str(client.send(Request(method="GET", path="/v1/session"))["projects"][0]["id"])

    project = await run_sync(own)
    provider = registry.factory("remote")(project=project)
    return [*await provider.list()], f"of the project {project} at {find_login().url}"


async def _refused(found: list[SandboxInfo], whose: str, output: Format) -> int:
    """Ask a person whether to destroy all; returns the exit code if not."""
    import sys

    from anyio.to_thread import run_sync

    from skerry.core import PROJECT_LABEL

    served = sum(PROJECT_LABEL in info.labels for info in found)
    others = f", {served} of them of users of its server" if served else ""
    count = f"{len(found)} sandbox" if len(found) == 1 else f"{len(found)} sandboxes"
    what = f"{count} {whose}{others}"
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        print_error(f"--all would destroy {what}", "INVALID_ARGUMENT", "confirm it with --yes", output=output)
        return 2
    sys.stderr.write(f"This destroys {what}, with their files. Continue? [y/N] ")
    sys.stderr.flush()
    # In a thread: the event loop takes the signals.
    answer = await run_sync(sys.stdin.readline, abandon_on_cancel=True)
    if answer.strip().lower() in ("y", "yes"):
        return 0
    note("nothing was destroyed")
    return 1


def gc(output: options.Output = Format.TEXT) -> None:
    """Remove what nobody owns any more.

    That is what a crash has left, sandboxes to destroy at the end of their lifetime, and what was leased to a process
    that has ended. Stopped sandboxes keep their files. Every start of a sandbox does the same clean-up.

    \b
    Example:
      skerry gc
    """

    async def work() -> None:
        from skerry.core import registry

        removed = await registry.provider().sweep()
        if output is Format.JSON:
            print_json({"removed": removed})
        else:
            say(*(removed or ["nothing to remove"]))

    execute(work, output=output)


@asynccontextmanager
async def connect(name: str, *, start: bool = True) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that exists, started if it does not run; it keeps running afterwards.

    Raises SandboxNotFound, and SandboxStopped if it is stopped and may not be started.
    """
    from skerry import AsyncSandbox

    sandbox = await AsyncSandbox.connect(name, auto_start=start)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def print_made(sandbox: AsyncSandbox, output: Format) -> None:
    """Print the id of a new sandbox, and for people how long it runs."""
    found = await sandbox.info()
    if output is Format.JSON:
        print_json(found)
        return
    say(sandbox.id)
    tell_end(found)


def tell_end(info: SandboxInfo) -> None:
    """Say on stderr when its timeout comes, and what happens then."""
    if info.expires_at is None:
        return
    which = info.name or info.id
    after = {
        "stop": f"and keeps its files; `skerry start {which}` starts it again",
        "destroy": "with its files; a sandbox with --name or --on-timeout stop keeps them",
        "pause": f"until `skerry resume {which}`",
    }[info.on_timeout]
    note(f"{which} {_expires(info)} {after}")


async def _list() -> list[SandboxInfo]:
    from skerry.core import registry

    return [*await registry.provider().list()]


async def _destroy(name: str, grace: float | None) -> str:
    """Destroy a sandbox, a damaged one too if it is given by its id. Raises SandboxNotFound, Corrupted."""
    from skerry import AsyncSandbox
    from skerry.core import Corrupted, is_sandbox_id, registry
    from skerry.sdk import look_up

    provider = registry.provider()
    try:
        if grace is not None:
            box = await AsyncSandbox.find(name)
            await box.destroy(graceful=True, timeout=grace)
            return box.id
        sandbox_id = (await look_up(provider, provider.find, name)).id
    except Corrupted:
        if not is_sandbox_id(name):
            raise
        sandbox_id = name
    await provider.destroy(sandbox_id)
    return sandbox_id


def _mount(mount: VolumeMount) -> str:
    """A mount in the form that --volume takes."""
    return ":".join(filter(None, (mount.name, mount.path, mount.subpath, "ro" if mount.read_only else "")))


def _expires(info: SandboxInfo) -> str:
    if info.expires_at is None:
        return "-"
    what = {"stop": "stops", "destroy": "is destroyed", "pause": "pauses"}[info.on_timeout]
    return f"{what} in {duration(max(0.0, info.expires_at - time.time()))}"
