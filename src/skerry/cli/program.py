"""All commands as one typer program, and how wrong usage is told."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.help import Outlined
from skerry.cli.options import Format
from skerry.cli.table import ABOUT, COMMANDS, GROUPS, OPTIONS

_COMMAND_LAST = ("run", "exec", "sh")
"""What follows the first word of these belongs to the command that they run."""

if TYPE_CHECKING:
    app: typer.Typer
    """All commands, made when it is first used."""


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = build()
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"skerry {version('skerry')}")
        raise typer.Exit


def skerry(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help=OPTIONS["--version"])
    ] = False,
) -> None:
    pass


def build(only: Container[str] | None = None) -> typer.Typer:
    """The program with all commands, or only some: to make all of them takes longer than most of them do."""
    program = typer.Typer(
        name="skerry",
        cls=Outlined,
        add_completion=False,  # `skerry completion` knows remote paths
        help=ABOUT,
        rich_markup_mode=None,  # rich costs more time to load than a sandbox to make
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback()(skerry)
    for name, (_, module, function, _) in COMMANDS.items():
        if only is None or name in only:
            settings: dict[str, Any] = {"allow_interspersed_args": name not in _COMMAND_LAST}
            program.command(name, context_settings=settings)(_object(module, function))
    for name, (_, module, group, _) in GROUPS.items():
        if only is None or name in only:
            program.add_typer(_object(module, group), name=name)
    return program


def _object(module: str, name: str) -> Any:
    return getattr(import_module(f"skerry.cli.{module}"), name)


def _format(arguments: list[str]) -> Format:
    """The value of `-o`, for a command line that cannot be parsed."""
    own = " ".join(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    asked = any(spelling in own for spelling in ("-o json", "-ojson", "--output json", "--output=json"))
    return Format.JSON if asked else Format.TEXT


def perform(program: typer.Typer, arguments: list[str]) -> None:
    """Run the command line and exit: with 2 for wrong usage."""
    try:
        program(arguments, prog_name="skerry", standalone_mode=False)
    except typer.TyperException as error:
        from skerry.cli.terminal.output import print_error

        context = getattr(error, "ctx", None)
        path = context.command_path if context else "skerry"
        message = error.format_message().rstrip(".")
        print_error(message, "INVALID_ARGUMENT", f"see `{path} --help`", output=_format(arguments))
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        raise SystemExit(130) from None
