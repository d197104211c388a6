"""The help of the program inside typer, and the command `help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skerry.cli.table import outline


class Outlined(TyperGroup):
    """Shows its commands under their headings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(outline() + "\n")


def help_(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="The command's name.", show_default=False)
    ] = None,
) -> None:
    """Show what a command does, its options and examples.

    Without COMMAND, lists the commands. `skerry COMMAND --help` is the same.

    \b
    Example:
      skerry help cp
      skerry help volume create
    """
    inner = context.find_root()
    for name in command or []:
        group = inner.command
        found = group.commands.get(name) if isinstance(group, TyperGroup) else None
        if found is None:
            inner.fail(f"there is no command {' '.join(command or [])!r}")
        inner = found.make_context(name, [], parent=inner, resilient_parsing=True)
    print(inner.get_help())
