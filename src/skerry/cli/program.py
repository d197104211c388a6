"""All commands as one typer program, and how wrong usage is told."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from skerry.cli.declare import Argument, Option, Seconds
from skerry.cli.help import Guessing, Outlined
from skerry.cli.options import Format
from skerry.cli.table import ABOUT, COMMAND_LAST, COMMANDS, GROUPS, OPTIONS

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
            settings: dict[str, Any] = {"allow_interspersed_args": name not in COMMAND_LAST}
            program.command(name, context_settings=settings)(for_typer(_object(module, function)))
    for name, (_, module, group, _) in GROUPS.items():
        if only is None or name in only:
            inner: typer.Typer = _object(module, group)
            for each in inner.registered_commands:
                each.callback = each.callback and for_typer(each.callback)
            program.add_typer(inner, name=name, cls=Guessing)
    return program


def _object(module: str, name: str) -> Any:
    return getattr(import_module(f"skerry.cli.{module}"), name)


def for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with its options and arguments as typer declares them."""
    own = inspect.signature(command, eval_str=True)
    parameters = [each.replace(annotation=_typer_annotation(each.annotation)) for each in own.parameters.values()]

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        return command(**values)

    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper


def _typer_annotation(annotation: Any) -> Any:
    kind, *declared = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    match declared:
        case [Argument() as it]:
            made = typer.Argument(metavar=it.metavar, help=it.help, show_default=it.show_default)
        case [Option() as it]:
            text = it.help if isinstance(it.help, str) else it.help()
            parser = _seconds if Seconds in (kind, *get_args(kind)) else None
            made = typer.Option(*it.names, metavar=it.metavar, help=text, show_default=it.show_default, parser=parser)
        case _:
            return annotation
    return Annotated[kind, made]


def _seconds(value: str | float) -> Seconds:
    try:
        return Seconds(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a duration: write it like 90, 90s, 1h30m or 500ms") from None


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
