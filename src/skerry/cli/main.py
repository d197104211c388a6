"""The program: its commands, and how wrong usage is told. Whatever is slow to import is imported by the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from skerry.cli import bench, conformance, doctor, files, ports, processes, sandboxes, terminals, watch
from skerry.cli.options import Format
from skerry.cli.output import print_error

app = typer.Typer(
    name="skerry",
    help="Run code in isolated sandboxes.\n\n\b\nExample:\n  skerry run -- python3 -c 'print(6 * 7)'",
    rich_markup_mode=None,  # rich costs more time to load than a sandbox to make
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


_COMMAND_LAST = {"allow_interspersed_args": False}  # what follows the first word belongs to the command run

app.command(context_settings=_COMMAND_LAST)(processes.run)
app.command()(sandboxes.create)
app.command("exec", context_settings=_COMMAND_LAST)(processes.exec_)
app.command("sh", context_settings=_COMMAND_LAST)(terminals.shell)
app.command()(terminals.attach)
app.command()(sandboxes.ps)
app.command()(sandboxes.info)
app.command()(processes.logs)
app.command()(processes.kill)
app.command()(files.cat)
app.command("ls")(files.list_)
app.command()(watch.watch)
app.command()(ports.port)
app.command()(sandboxes.rm)
app.command()(sandboxes.gc)
app.command()(doctor.doctor)
app.command()(bench.bench)
app.command()(conformance.conformance)


def _format(arguments: list[str]) -> Format:
    """What `-o` says, for a command line that cannot be parsed."""
    own = " ".join(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    asked = any(spelling in own for spelling in ("-o json", "-ojson", "--output json", "--output=json"))
    return Format.JSON if asked else Format.TEXT


def main() -> None:
    """Runs the command line of this process and exits: 2 for wrong usage."""
    arguments = sys.argv[1:]
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
