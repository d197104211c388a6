"""The commands `volume create`, `ls`, `show` and `rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute, remove_each
from skerry.cli.terminal.output import ago, note, print_json, print_table, say, size

if TYPE_CHECKING:
    from skerry.core import VolumeInfo

HELP = """Keep directories that sandboxes share and that outlive them.

\b
Example:
  skerry volume create models --size 5GB
  skerry run --volume models:/models -- ls /models
"""

app = typer.Typer(name="volume", help=HELP, rich_markup_mode=None, add_completion=False)

VolumeName = Annotated[str, typer.Argument(metavar="VOLUME", help="The volume's name.", show_default=False)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A unique name for the volume.", show_default=False)],
    limit: Annotated[str | None, typer.Option("--size", metavar="SIZE", help="Limit the volume to this size.")] = None,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Remove the volume with the last sandbox that has it.")
    ] = False,
    encrypted: Annotated[bool, typer.Option("--encrypted", help="Encrypt its files on disk.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Make an empty volume and print its name.

    \b
    Example:
      skerry volume create models --size 5GB
    """

    async def work() -> None:
        from skerry import AsyncVolumes

        made = await AsyncVolumes().create(name, size=limit, temporary=temporary, encrypted=encrypted)
        if output is Format.JSON:
            print_json(made)
        else:
            say(made.name)

    execute(work, output=output)


@app.command("ls")
def list_(output: options.Output = Format.TEXT) -> None:
    """List the volumes, by name.

    \b
    Example:
      skerry volume ls
    """

    async def work() -> None:
        from skerry import AsyncVolumes

        found = await AsyncVolumes().list()
        if output is Format.JSON:
            print_json(found)
        elif not found:
            note("no volumes")
        else:
            print_table(
                ("NAME", "USED", "SIZE", "AGE", "KIND", "SANDBOXES"),
                [
                    (
                        info.name,
                        size(info.used),
                        size(info.size),
                        ago(info.created_at),
                        _kind(info),
                        str(len(info.sandboxes)),
                    )
                    for info in found
                ],
                right=("USED", "SIZE", "SANDBOXES"),
            )

    execute(work, output=output)


@app.command()
def show(name: VolumeName, output: options.Output = Format.TEXT) -> None:
    """Show everything about a volume, and which sandboxes have it.

    \b
    Example:
      skerry volume show models -o json
    """

    async def work() -> None:
        from skerry import AsyncVolumes

        info = await AsyncVolumes().get(name)
        if output is Format.JSON:
            print_json(info)
            return
        lines = {
            "name": info.name,
            "created": f"{ago(info.created_at)} ago",
            "kind": _kind(info),
            "used": size(info.used),
            "size": "no limit" if info.size is None else size(info.size),
            "sandboxes": " ".join(info.sandboxes) or "-",
        }
        for label, value in lines.items():
            say(f"{label + ':':<12} {value}")

    execute(work, output=output)


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="VOLUME...", help="The names of volumes.", show_default=False)],
    output: options.Output = Format.TEXT,
) -> None:
    """Delete volumes with everything in them; print their names.

    \b
    Example:
      skerry volume rm models

    \b
    Exit codes:
      0  all of them are gone
      1  one did not exist, or a sandbox has it; the others are gone
    """

    async def remove(name: str) -> str:
        from skerry import AsyncVolumes

        await AsyncVolumes().delete(name)
        return name

    remove_each(names, remove, output=output)


def _kind(info: VolumeInfo) -> str:
    return "temporary" if info.temporary else "persistent"
