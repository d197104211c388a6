"""The command `watch`: changes to files in a sandbox."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, printable

if TYPE_CHECKING:
    from skerry import AsyncWatch
    from skerry.core import FileEvent

Path = Annotated[str, typer.Argument(metavar="[PATH]", help="The file or directory to watch.", show_default=False)]


def watch(
    sandbox: options.SandboxName,
    path: Path = ".",
    recursive: Annotated[
        bool, typer.Option("--recursive/--no-recursive", help="Watch everything below it too.")
    ] = True,
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", help="End after this many events.")] = None,
    timeout: Annotated[
        Seconds | None, Option("--timeout", "-t", metavar="TIME", help="End after this long, such as 90s.")
    ] = None,
    user: options.User = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Print what changes in a sandbox, one event on a line.

    With -o json, each line is an object. `overflow` says that events were lost.

    \b
    Example:
      skerry watch my-box /workspace
      skerry watch my-box --count 1 --timeout 60 -o json
    """

    async def work() -> None:
        import anyio

        from skerry.cli.commands.sandboxes import connect
        from skerry.core import InvalidArgument, check_seconds

        if count is not None and count < 1:
            raise InvalidArgument("--count must be 1 or more")
        limit = None if timeout is None else check_seconds(timeout, "--timeout")
        async with connect(sandbox) as box, box.files.watch(path, recursive=recursive, user=user) as events:
            note(f"watching {path}")
            with anyio.move_on_after(limit):
                await _print_events(events, count, output=output)

    execute(work, output=output)


async def _print_events(events: AsyncWatch, count: int | None, *, output: Format) -> None:
    from skerry.cli.terminal.stdio import write

    printed = 0
    async for event in events:
        line = json.dumps(asdict(event)) if output is Format.JSON else _line(event)
        await write(1, f"{line}\n".encode("utf-8", "surrogateescape"))
        printed += 1
        if printed == count:
            return


def _line(event: FileEvent) -> str:
    name = event.path + ("/" if event.is_dir and event.path else "")
    moved = f"{event.old_path} -> " if event.old_path else ""
    return f"{event.kind.value:<10} {printable(moved + (name or '.'))}"
