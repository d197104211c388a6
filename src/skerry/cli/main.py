"""The start of the program: its own help at once, else the command asked for, without the modules of the others."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from skerry.cli.completion import ASK
from skerry.cli.table import AT_ONCE, COMMAND_LAST, COMMANDS, GROUPS, outline

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
    gc.set_threshold(20_000)  # almost nothing that is imported is ever garbage
    ended: list[int] = []
    atexit.register(_leave, ended)  # before all others, so it is called after them
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:
        ended.append(130)
        raise SystemExit(130) from None
    except SystemExit as end:
        if isinstance(end.code, int | None):
            ended.append(end.code or 0)
        raise
    ended.append(0)


def _leave(ended: list[int]) -> None:
    """Ends the process without taking the interpreter apart, which would take longer than many a command.

    Threads have ended by now, and what else was to be done at the exit is done.
    """
    if ended:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except (OSError, ValueError):
            return  # Python reports it
        os._exit(ended[0] & 0xFF)


def _run(arguments: list[str]) -> None:
    if arguments in ([], ["-h"], ["--help"]):
        print(outline())
    elif arguments[0] == ASK:
        from skerry.cli.completion import scripts
        from skerry.cli.program import build

        scripts.answer(build(), arguments[1:])
    elif not _done_at_once(arguments):
        from skerry.cli.program import perform

        perform(_program(arguments), arguments)


def _done_at_once(arguments: list[str]) -> bool:
    """Run the command if it can do without typer. Ends with SystemExit where the command does."""
    word = arguments[0]
    if word not in AT_ONCE:
        return False
    from skerry.cli.declare import parse

    _, module, function, _ = COMMANDS[word]
    command = getattr(import_module(f"skerry.cli.{module}"), function)
    values = parse(command, arguments[1:], interspersed=word not in COMMAND_LAST)
    if values is None:
        return False
    command(**values)
    return True
