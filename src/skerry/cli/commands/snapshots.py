"""The commands `snapshot create`, `ls`, `restore`, `rm` and `tree`, and `clone` and `fork`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.commands.sandboxes import print_made
from skerry.cli.create_options import Given, with_options
from skerry.cli.options import Format
from skerry.cli.runtime import execute, remove_each
from skerry.cli.terminal.output import ago, note, print_error, print_json, print_table, say, size

if TYPE_CHECKING:
    from skerry.core import SnapshotInfo
    from skerry.sdk import SnapshotNode

HELP = """Keep the files of sandboxes, and return to them.

\b
Example:
  skerry snapshot create my-box before-upgrade
  skerry snapshot restore my-box before-upgrade
"""

app = typer.Typer(name="snapshot", help=HELP, rich_markup_mode=None, add_completion=False)

SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The snapshot's id or name.", show_default=False)]
Secrets = Annotated[bool, typer.Option("--secrets", help="Give the copy the secrets too.")]


@app.command()
def create(
    sandbox: options.SandboxName,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A unique name for the snapshot.")] = None,
    description: Annotated[
        str, typer.Option("--description", "-d", metavar="TEXT", help="Say what the snapshot is for.")
    ] = "",
    output: options.Output = Format.TEXT,
) -> None:
    """Take a snapshot of a sandbox and print its id. A running sandbox keeps running.

    \b
    Example:
      skerry snapshot create my-box before-upgrade -d "all tests pass"
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        box = await AsyncSandbox.find(sandbox)
        made = await box.snapshots.create(name, description=description)
        if output is Format.JSON:
            print_json(made)
        else:
            say(made.id)

    execute(work, output=output)


@app.command("ls")
def list_(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]", help="The id or name of a sandbox, to show only its snapshots.", show_default=False
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the ids.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """List the snapshots, newest first.

    The list includes snapshots of sandboxes that are gone.

    \b
    Example:
      skerry snapshot ls
      skerry snapshot ls my-box -o json
    """

    async def work() -> None:
        found = await _list(sandbox)
        if output is Format.JSON:
            print_json(found)
        elif quiet:
            for info in found:
                say(info.id)
        elif not found:
            note("no snapshots")
        else:
            print_table(
                ("ID", "NAME", "SANDBOX", "AGE", "SIZE", "KIND", "PARENT", "DESCRIPTION"),
                [
                    (
                        info.id,
                        info.name or "-",
                        info.sandbox_id,
                        ago(info.created_at),
                        size(info.size),
                        info.kind,
                        info.parent or "-",
                        info.description.partition("\n")[0] or "-",
                    )
                    for info in found
                ],
                right=("SIZE",),
            )

    execute(work, output=output)


@app.command()
def restore(sandbox: options.SandboxName, snapshot: SnapshotName, output: options.Output = Format.TEXT) -> None:
    """Restore a sandbox to a snapshot, under the same id. All its processes end.

    \b
    Example:
      skerry snapshot restore my-box before-upgrade
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        box = await AsyncSandbox.find(sandbox)
        try:
            info = await box.snapshots.restore(snapshot)
        finally:
            await box.close()
        if output is Format.JSON:
            print_json(info)
        else:
            say(f"{info.id} is {info.state.value}")

    execute(work, output=output)


@app.command()
def rm(
    snapshots: Annotated[
        list[str], typer.Argument(metavar="SNAPSHOT...", help="The ids or names of snapshots.", show_default=False)
    ],
    output: options.Output = Format.TEXT,
) -> None:
    """Delete snapshots; print their ids. Sandboxes made from them stay as they are.

    \b
    Example:
      skerry snapshot rm before-upgrade

    \b
    Exit codes:
      0  all of them are gone
      1  one did not exist; the others are gone
    """

    async def remove(name: str) -> str:
        from skerry import AsyncSnapshots
        from skerry.core import is_snapshot_id

        found = name if is_snapshot_id(name) else (await AsyncSnapshots().get(name)).id
        await AsyncSnapshots().delete(found)
        return found

    remove_each(snapshots, remove, output=output)


@app.command()
def tree(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]", help="The id or name of a sandbox, to show only its snapshots.", show_default=False
        ),
    ] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Show which snapshot was taken after which.

    \b
    Example:
      skerry snapshot tree
    """

    async def work() -> None:
        from skerry.sdk import snapshot_trees

        roots = snapshot_trees(await _list(sandbox))
        if output is Format.JSON:
            print_json(roots)
        elif not roots:
            note("no snapshots")
        else:
            for line in _draw(roots):
                say(line)

    execute(work, output=output)


_CHANGES = ("env", "lifetime", "on_timeout", "memory", "cpu", "pids", "disk")
"""The options in which a copy can differ."""


@with_options("name", *_CHANGES)
def clone(
    sandbox: options.SandboxName, given: Given, secrets: Secrets = False, output: options.Output = Format.TEXT
) -> None:
    """Make a running copy of a sandbox and print its id.

    The copy has the files and variables of the source, not its processes.

    \b
    Example:
      skerry clone my-box --name other --env MODE=test --memory 1GB
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        source = await AsyncSandbox.find(sandbox)
        copy = await source.clone(**given(), secrets=secrets)
        try:
            await print_made(copy, output)
        finally:
            await copy.close()

    execute(work, output=output)


@with_options(*_CHANGES)
def fork(
    sandbox: options.SandboxName,
    copies: Annotated[
        int, typer.Option("--copies", "-n", metavar="N", help="Make this many copies.", show_default=False)
    ],
    given: Given,
    secrets: Secrets = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Make several copies of a sandbox at once; print their ids.

    All copies show the source at the same moment, and run.

    \b
    Example:
      skerry fork my-box -n 10

    \b
    Exit codes:
      0  all of them run
      1  one could not be made; the others run
    """

    async def work() -> int:
        from skerry import AsyncSandbox

        source = await AsyncSandbox.find(sandbox)
        results = await source.fork(copies, **given(), secrets=secrets)
        made = [result.sandbox for result in results if result.sandbox is not None]
        errors = [result.error for result in results if result.error is not None]
        for error in errors:
            print_error(error.message, error.code, error.hint, output=output)
        if output is Format.JSON:
            print_json([await box.info() for box in made])
        else:
            for box in made:
                say(box.id)
        return 1 if errors else 0

    execute(work, output=output)


async def _list(sandbox: str | None) -> list[SnapshotInfo]:
    """All snapshots, or those of a sandbox; given by its id, it may be gone."""
    from skerry import AsyncSandbox, AsyncSnapshots
    from skerry.core import SandboxNotFound

    everything = await AsyncSnapshots().list()
    if sandbox is None:
        return everything
    found = [info for info in everything if info.sandbox_id == sandbox]
    try:
        known = (await AsyncSandbox.find(sandbox)).id
    except SandboxNotFound:
        if not found:
            raise
        return found
    return [info for info in everything if info.sandbox_id == known]


def _draw(nodes: Sequence[SnapshotNode], before: str = "") -> Iterator[str]:
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        info = node.snapshot
        about = f"{info.name or info.id}  {ago(info.created_at)} ago, {size(info.size)}, {info.kind}"
        yield f"{before}{'└── ' if last else '├── '}{about}  ({info.id} of {info.sandbox_id})"
        yield from _draw(node.children, before + ("    " if last else "│   "))
