"""The help of the program inside typer, and the command `help`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skerry.cli.table import COMMANDS, GROUPS, MEANT, MEANT_ALONE, outline


class Guessing(TyperGroup):
    """Answers a word that is not one of its commands with the command that it probably means."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        asked, top = args[0], ctx.parent is None
        if asked in self.commands or asked.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # Only what this command line needs is loaded, and the table knows all.
        known = [*COMMANDS, *GROUPS] if top else list(self.commands)
        meant = MEANT_ALONE.get(asked.lower()) if top else None
        meant = meant or MEANT.get(asked.lower())
        if meant is None or not (meant.startswith("-") or meant.split()[0] in known):
            meant = next(iter(get_close_matches(asked, known)), None)
        guess = f"; did you mean {meant!r}?" if meant else ""
        return ctx.fail(f"There is no command {asked!r}{guess}")


class Outlined(Guessing):
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
