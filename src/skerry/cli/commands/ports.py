"""The command `port`: a sandbox's TCP ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from skerry import AsyncSandbox

Inside = Annotated[
    int | None, typer.Argument(metavar="[PORT]", help="The port inside the sandbox.", show_default=False)
]
Local = Annotated[int, typer.Argument(metavar="[LOCAL]", help="The port on this machine; 0 means any free port.")]


def port(
    sandbox: options.SandboxName,
    port: Inside = None,
    local: Local = 0,
    host: Annotated[str, typer.Option("--host", metavar="ADDR", help="Listen on this address.")] = "127.0.0.2",
    wait: Annotated[
        Seconds, Option("--wait", metavar="TIME", help="Wait up to this long for a server inside, such as 30s.")
    ] = Seconds(0),
    output: options.Output = Format.TEXT,
) -> None:
    """List the ports of a sandbox, or forward one to here.

    A forward prints its URL when it is ready and lasts until Ctrl-C. It listens on 127.0.0.2, so a browser does not
    send what it stores for 127.0.0.1, such as the session of a Skerry server, to the program in the sandbox.

    \b
    Example:
      skerry port my-box
      skerry port my-box 8000 8080 --wait 10
    """

    async def work() -> None:
        from skerry.cli.commands.sandboxes import connect

        async with connect(sandbox) as box:
            if port is None:
                await _print_ports(box, output=output)
            else:
                await _forward(box, port, local, host=host, wait=wait, output=output)

    execute(work, output=output)


async def _print_ports(sandbox: AsyncSandbox, *, output: Format) -> None:
    found = await sandbox.ports.list()
    if output is Format.JSON:
        print_json(found)
    elif not found:
        note("no listening ports")
    else:
        rows = [(str(entry.port), entry.address, str(entry.uid)) for entry in found]
        print_table(("PORT", "ADDRESS", "UID"), rows, right=("PORT", "UID"))


async def _forward(sandbox: AsyncSandbox, port: int, local: int, *, host: str, wait: float, output: Format) -> None:
    import sys

    import anyio

    async with await sandbox.ports.forward(port, local_port=local, host=host, wait=wait) as forward:
        if output is Format.JSON:
            print_json({"url": forward.url, "host": host, "local_port": forward.local_port, "port": port})
        else:
            say(forward.url)
        sys.stdout.flush()
        await anyio.sleep_forever()
