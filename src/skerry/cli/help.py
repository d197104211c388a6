"""How help is shown: commands in groups, and the command `help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

GROUPS = ("Sandboxes", "Lifecycle", "Running", "Files", "Keeping", "Network", "Looking", "Server", "Machine")
"""The groups in the order of the help; a command names its group as `rich_help_panel`."""


class Grouped(TyperGroup):
    """Shows its commands under the headings of GROUPS, without rich."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        width = max(len(name) for name, _ in shown)
        for group in GROUPS:
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                for name, command in shown
                if getattr(command, "rich_help_panel", None) == group and not command.hidden
            ]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


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
