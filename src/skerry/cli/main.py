"""The program: its commands, and how wrong usage is told. It imports the module of the command asked for, no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.completion import ASK
from skerry.cli.help import Grouped
from skerry.cli.options import Format

COMMANDS = {
    "create": ("Sandboxes", "skerry.cli.commands.sandboxes", "create"),
    "ps": ("Sandboxes", "skerry.cli.commands.sandboxes", "ps"),
    "info": ("Sandboxes", "skerry.cli.commands.sandboxes", "info"),
    "rm": ("Sandboxes", "skerry.cli.commands.sandboxes", "rm"),
    "stop": ("Lifecycle", "skerry.cli.commands.lifecycle", "stop"),
    "start": ("Lifecycle", "skerry.cli.commands.lifecycle", "start"),
    "restart": ("Lifecycle", "skerry.cli.commands.lifecycle", "restart"),
    "pause": ("Lifecycle", "skerry.cli.commands.lifecycle", "pause"),
    "resume": ("Lifecycle", "skerry.cli.commands.lifecycle", "resume"),
    "recover": ("Lifecycle", "skerry.cli.commands.lifecycle", "recover"),
    "reset": ("Lifecycle", "skerry.cli.commands.lifecycle", "reset"),
    "run": ("Running", "skerry.cli.commands.run", "run"),
    "exec": ("Running", "skerry.cli.commands.run", "exec_"),
    "sh": ("Running", "skerry.cli.commands.shell", "shell"),
    "attach": ("Running", "skerry.cli.commands.shell", "attach"),
    "logs": ("Running", "skerry.cli.commands.logs", "logs"),
    "kill": ("Running", "skerry.cli.commands.run", "kill"),
    "ls": ("Files", "skerry.cli.commands.files", "list_"),
    "cat": ("Files", "skerry.cli.commands.files", "cat"),
    "cp": ("Files", "skerry.cli.commands.cp", "cp"),
    "edit": ("Files", "skerry.cli.commands.edit", "edit"),
    "watch": ("Files", "skerry.cli.commands.watch", "watch"),
    "clone": ("Keeping", "skerry.cli.commands.snapshots", "clone"),
    "fork": ("Keeping", "skerry.cli.commands.snapshots", "fork"),
    "export": ("Keeping", "skerry.cli.commands.export", "export"),
    "import": ("Keeping", "skerry.cli.commands.export", "import_"),
    "archive": ("Keeping", "skerry.cli.commands.export", "archive"),
    "port": ("Network", "skerry.cli.commands.ports", "port"),
    "usage": ("Looking", "skerry.cli.commands.inspect", "usage"),
    "events": ("Looking", "skerry.cli.commands.inspect", "events"),
    "up": ("Server", "skerry.cli.commands.server", "up"),
    "status": ("Server", "skerry.cli.commands.server", "status"),
    "down": ("Server", "skerry.cli.commands.server", "down"),
    "backup": ("Server", "skerry.cli.commands.server", "backup"),
    "login": ("Server", "skerry.cli.commands.accounts", "login"),
    "logout": ("Server", "skerry.cli.commands.accounts", "logout"),
    "whoami": ("Server", "skerry.cli.commands.accounts", "whoami"),
    "gc": ("Machine", "skerry.cli.commands.sandboxes", "gc"),
    "doctor": ("Machine", "skerry.cli.commands.doctor", "doctor"),
    "bench": ("Machine", "skerry.cli.commands.bench", "bench"),
    "conformance": ("Machine", "skerry.cli.commands.conformance", "conformance"),
    "completion": ("Machine", "skerry.cli.completion.scripts", "completion"),
    "help": ("Machine", "skerry.cli.help", "help_"),
}
"""For each command its heading in the help, its module and its function."""
GROUPS = {
    "snapshot": ("Keeping", "skerry.cli.commands.snapshots", "app"),
    "template": ("Keeping", "skerry.cli.commands.templates", "app"),
    "volume": ("Keeping", "skerry.cli.commands.volumes", "app"),
    "config": ("Server", "skerry.cli.commands.server", "config"),
    "user": ("Server", "skerry.cli.commands.accounts", "users"),
    "key": ("Server", "skerry.cli.commands.accounts", "keys"),
    "project": ("Server", "skerry.cli.commands.accounts", "projects"),
    "storage": ("Machine", "skerry.cli.commands.storage", "app"),
}
"""For each group of commands its heading in the help, its module, and its object there."""
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def build(only: Container[str] | None = None, *, outlined: bool = False) -> typer.Typer:
    """The program with all commands, or only some: to make all of them takes longer than most of them do.

    `outlined`: with their names and what they say of themselves, for the help of the program as a whole.
    """
    program = typer.Typer(
        name="skerry",
        cls=Grouped,
        add_completion=False,  # `skerry completion` knows remote paths
        help="Run code in isolated sandboxes.\n\n\b\nExample:\n  skerry run -- python3 -c 'print(6 * 7)'",
        rich_markup_mode=None,  # rich costs more time to load than a sandbox to make
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback()(skerry)
    for name, (heading, module, function) in COMMANDS.items():
        if only is None or name in only:
            command = getattr(import_module(module), function)
            settings: dict[str, Any] = {"allow_interspersed_args": name not in _COMMAND_LAST}
            program.command(name, rich_help_panel=heading, context_settings=settings)(
                _outline(command.__doc__) if outlined else command
            )
    for name, (heading, module, attribute) in GROUPS.items():
        if only is None or name in only:
            group = getattr(import_module(module), attribute)
            shown = typer.Typer(help=group.info.help) if outlined else group
            program.add_typer(shown, name=name, rich_help_panel=heading)
            if outlined:
                shown.command("help")(_outline(None))  # a group without a command cannot be made
    return program


def _outline(text: str | None) -> Callable[[], None]:
    def command() -> None:
        pass

    command.__doc__ = text
    return command


def _format(arguments: list[str]) -> Format:
    """The value of `-o`, for a command line that cannot be parsed."""
    own = " ".join(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    asked = any(spelling in own for spelling in ("-o json", "-ojson", "--output json", "--output=json"))
    return Format.JSON if asked else Format.TEXT


def _program(arguments: list[str]) -> typer.Typer:
    """As much of the program as this command line needs."""
    word = arguments[0] if arguments else "--help"
    if word in ("--help", "-h"):
        return build(outlined=True)
    asked = word in COMMANDS or word in GROUPS
    return build((word,) if asked and word not in ("help", "completion") else None)


def main() -> None:
    """Runs the command line of this process and exits: 2 for wrong usage."""
    arguments = sys.argv[1:]
    if arguments[:1] == [ASK]:
        from skerry.cli.completion import scripts

        scripts.answer(build(), arguments[1:])
        return
    try:
        _program(arguments)(arguments or ["--help"], prog_name="skerry", standalone_mode=False)
    except typer.TyperException as error:
        from skerry.cli.terminal.output import print_error

        context = getattr(error, "ctx", None)
        path = context.command_path if context else "skerry"
        message = error.format_message().rstrip(".")
        print_error(message, "INVALID_ARGUMENT", f"see `{path} --help`", output=_format(arguments))
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        raise SystemExit(130) from None
