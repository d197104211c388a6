"""The commands `template build`, `ls`, `show` and `rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute, remove_each
from skerry.cli.terminal.build_display import build_display
from skerry.cli.terminal.output import ago, print_json, print_table, say, size

if TYPE_CHECKING:
    from skerry.core import TemplateInfo

HELP = """Build templates that sandboxes begin with, and keep them.

\b
Example:
  skerry template build react-ts
  skerry create --template react-ts
"""

app = typer.Typer(name="template", help=HELP, rich_markup_mode=None, add_completion=False)

TemplateName = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="The template's name, with or without a version.", show_default=False)
]


@app.command()
def build(
    template: Annotated[
        str | None,
        typer.Argument(metavar="[TEMPLATE]", help="A name, a template.yaml, or its directory.", show_default=False),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="IMAGE", help="Build from docker://NAME:TAG, an OCI archive or a `docker save` file."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Call the image this.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build it again even if it is built.")] = False,
    timeout: Annotated[
        Seconds | None, Option("--timeout", "-t", metavar="TIME", help="Give up after this long, such as 20m.")
    ] = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Build a template and everything it is based on; print its name.

    The output of the steps goes to stderr. A template that is already built is not built again. TEMPLATE is a path if
    it contains a slash or ends with .yaml.

    \b
    Example:
      skerry template build ./my-template
      skerry template build --image image.tar --name my-image
      skerry template build --image docker://python:3.12 --name py312

    \b
    Exit codes:
      0  the template is built
        1  a step failed, which the message names; nothing of the build is left
    """

    async def work() -> None:
        from skerry import AsyncTemplates
        from skerry.sdk import BUILD_TIMEOUT

        with build_display(output=output, logs=True) as display:
            made = await AsyncTemplates().build(
                template,
                image=image,
                name=name,
                force=force,
                timeout=BUILD_TIMEOUT if timeout is None else timeout,
                on_log=display.on_log,
                on_progress=display.on_progress,
            )
        if output is Format.JSON:
            print_json(made)
        else:
            say(f"{made.name}:{made.version}")

    execute(work, output=output)


@app.command("ls")
def list_(output: options.Output = Format.TEXT) -> None:
    """List the templates.

    \b
    Example:
      skerry template ls
    """

    async def work() -> None:
        from skerry import AsyncTemplates

        found = await AsyncTemplates().list()
        if output is Format.JSON:
            print_json(found)
            return
        print_table(
            ("NAME", "VERSION", "BUILT", "SIZE", "PORTS", "DESCRIPTION"),
            [
                (
                    info.name,
                    info.version,
                    _age(info),
                    size(info.size),
                    " ".join(map(str, info.ports)) or "-",
                    info.description,
                )
                for info in found
            ],
            right=("SIZE",),
        )

    execute(work, output=output)


@app.command()
def show(name: TemplateName, output: options.Output = Format.TEXT) -> None:
    """Show everything about a template.

    \b
    Example:
      skerry template show node:22 -o json
    """

    async def work() -> None:
        from skerry import AsyncTemplates

        info = await AsyncTemplates().show(name)
        if output is Format.JSON:
            print_json(info)
            return
        lines = {
            "name": info.name,
            "version": info.version,
            "description": info.description or "-",
            "aliases": " ".join(info.aliases) or "-",
            "built": _age(info),
            "size": size(info.size),
            "ports": " ".join(map(str, info.ports)) or "-",
            "digest": info.digest or "-",
        }
        for label, value in lines.items():
            say(f"{label + ':':<12} {value}")

    execute(work, output=output)


@app.command()
def rm(
    names: Annotated[
        list[str], typer.Argument(metavar="TEMPLATE...", help="The names of templates.", show_default=False)
    ],
    output: options.Output = Format.TEXT,
) -> None:
    """Remove built templates; print their names. One that comes with Skerry is built again when it is needed.

    \b
    Example:
      skerry template rm my-template

    \b
    Exit codes:
      0  all of them are gone
      1  one did not exist, or something needs it; the others are gone
    """

    async def remove(name: str) -> str:
        from skerry import AsyncTemplates

        await AsyncTemplates().remove(name)
        return name

    remove_each(names, remove, output=output)


def _age(info: TemplateInfo) -> str:
    if info.built_at is None:
        return "always" if info.built else "-"
    return f"{ago(info.built_at)} ago"
