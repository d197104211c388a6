"""The start of the program: its own help at once, else the command asked for, without the modules of the others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from skerry.cli.completion import ASK
from skerry.cli.table import COMMANDS, GROUPS, outline

if TYPE_CHECKING:
    import typer


def _program(arguments: list[str]) -> typer.Typer:
    """As much of the program as this command line needs."""
    from skerry.cli.program import build

    word = arguments[0]
    asked = word in COMMANDS or word in GROUPS
    return build((word,) if asked and word not in ("help", "completion") else None)


def main() -> None:
    """Runs the command line of this process and exits: 2 for wrong usage."""
    arguments = sys.argv[1:]
    if arguments in ([], ["-h"], ["--help"]):
        print(outline())
        return
    if arguments[0] == ASK:
        from skerry.cli.completion import scripts
        from skerry.cli.program import build

        scripts.answer(build(), arguments[1:])
        return
    from skerry.cli.program import perform

    perform(_program(arguments), arguments)
