"""The program: its commands, and its errors for wrong usage. The commands import what is slow to import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from skerry.cli.commands import (
    accounts,
    bench,
    conformance,
    cp,
    doctor,
    edit,
    export,
    files,
    inspect,
    lifecycle,
    logs,
    ports,
    run,
    sandboxes,
    server,
    shell,
    snapshots,
    storage,
    templates,
    volumes,
    watch,
)
from skerry.cli.completion import scripts
from skerry.cli.help import Grouped, help_
from skerry.cli.options import Format
from skerry.cli.terminal.output import print_error

app = typer.Typer(
    name="skerry",
    cls=Grouped,
    add_completion=False,  # `skerry completion` knows remote paths
    help="Run code in isolated sandboxes.\n\n\b\nExample:\n  skerry run -- python3 -c 'print(6 * 7)'",
    rich_markup_mode=None,  # rich takes longer to load than a sandbox takes to make
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"skerry {version('skerry')}")
        raise typer.Exit


@app.callback()
def skerry(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_SEES_ALL = ("help", "completion")
_COMMAND_LAST = {"allow_interspersed_args": False}  # what follows the first word belongs to the command that is run

app.command(rich_help_panel="Sandboxes")(sandboxes.create)
app.command(rich_help_panel="Sandboxes")(sandboxes.ps)
app.command(rich_help_panel="Sandboxes")(sandboxes.info)
app.command(rich_help_panel="Sandboxes")(sandboxes.rm)
app.command(rich_help_panel="Lifecycle")(lifecycle.stop)
app.command(rich_help_panel="Lifecycle")(lifecycle.start)
app.command(rich_help_panel="Lifecycle")(lifecycle.restart)
app.command(rich_help_panel="Lifecycle")(lifecycle.pause)
app.command(rich_help_panel="Lifecycle")(lifecycle.resume)
app.command(rich_help_panel="Lifecycle")(lifecycle.recover)
app.command(rich_help_panel="Lifecycle")(lifecycle.reset)
app.command(rich_help_panel="Running", context_settings=_COMMAND_LAST)(run.run)
app.command("exec", rich_help_panel="Running", context_settings=_COMMAND_LAST)(run.exec_)
app.command("sh", rich_help_panel="Running", context_settings=_COMMAND_LAST)(shell.shell)
app.command(rich_help_panel="Running")(shell.attach)
app.command(rich_help_panel="Running")(logs.logs)
app.command(rich_help_panel="Running")(run.kill)
app.command("ls", rich_help_panel="Files")(files.list_)
app.command(rich_help_panel="Files")(files.cat)
app.command(rich_help_panel="Files")(cp.cp)
app.command(rich_help_panel="Files")(edit.edit)
app.command(rich_help_panel="Files")(watch.watch)
app.add_typer(snapshots.app, name="snapshot", rich_help_panel="Keeping")
app.command(rich_help_panel="Keeping")(snapshots.clone)
app.command(rich_help_panel="Keeping")(snapshots.fork)
app.command(rich_help_panel="Keeping")(export.export)
app.command("import", rich_help_panel="Keeping")(export.import_)
app.command(rich_help_panel="Keeping")(export.archive)
app.add_typer(templates.app, name="template", rich_help_panel="Keeping")
app.add_typer(volumes.app, name="volume", rich_help_panel="Keeping")
app.command(rich_help_panel="Network")(ports.port)
app.command(rich_help_panel="Looking")(inspect.usage)
app.command(rich_help_panel="Looking")(inspect.events)
app.command(rich_help_panel="Server")(server.up)
app.command(rich_help_panel="Server")(server.status)
app.command(rich_help_panel="Server")(server.down)
app.command(rich_help_panel="Server")(server.backup)
app.add_typer(server.config, name="config", rich_help_panel="Server")
app.command(rich_help_panel="Server")(accounts.login)
app.command(rich_help_panel="Server")(accounts.logout)
app.command(rich_help_panel="Server")(accounts.whoami)
app.add_typer(accounts.users, name="user", rich_help_panel="Server")
app.add_typer(accounts.keys, name="key", rich_help_panel="Server")
app.add_typer(accounts.projects, name="project", rich_help_panel="Server")
app.add_typer(storage.app, name="storage", rich_help_panel="Machine")
app.command(rich_help_panel="Machine")(sandboxes.gc)
app.command(rich_help_panel="Machine")(doctor.doctor)
app.command(rich_help_panel="Machine")(bench.bench)
app.command(rich_help_panel="Machine")(conformance.conformance)
app.command(rich_help_panel="Machine")(scripts.completion)
app.command("help", rich_help_panel="Machine")(help_)


def _format(arguments: list[str]) -> Format:
    """The value of `-o`, for a command line that cannot be parsed."""
    own = " ".join(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    asked = any(spelling in own for spelling in ("-o json", "-ojson", "--output json", "--output=json"))
    return Format.JSON if asked else Format.TEXT


def _narrow(word: str) -> None:
    """Keep only the command that is asked for: making all commands takes longer than most of them run."""
    commands = [info for info in app.registered_commands if info.callback and _name(info, info.callback) == word]
    groups = [info for info in app.registered_groups if info.name == word]
    if (commands or groups) and word not in _SEES_ALL:
        app.registered_commands, app.registered_groups = commands, groups


def _name(info: CommandInfo, callback: Callable[..., object]) -> str:
    return info.name or get_command_name(callback.__name__)


def main() -> None:
    """Runs the command line of this process and exits: 2 for wrong usage."""
    arguments = sys.argv[1:]
    if arguments[:1] == [scripts.ASK]:
        scripts.answer(app, arguments[1:])
        return
    _narrow(arguments[0] if arguments else "")
    try:
        app(arguments or ["--help"], prog_name="skerry", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "skerry"
        message = error.format_message().rstrip(".")
        print_error(message, "INVALID_ARGUMENT", f"see `{path} --help`", output=_format(arguments))
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        raise SystemExit(130) from None
