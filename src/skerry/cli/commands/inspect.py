"""The commands `usage` and `events`: what a sandbox uses, and what happened to it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, print_table, say, size

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.core import Event, Usage

SAMPLE = 0.2
"""Seconds over which the CPU is measured for a single look."""
REWRITE = "\033[{lines}A\033[J"
"""Moves a terminal's cursor up and clears what is below it."""


def usage(
    sandbox: options.SandboxName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until the sandbox ends or Ctrl-C.")] = False,
    interval: Annotated[
        Seconds, Option("--interval", metavar="TIME", help="Wait this long between looks, 100ms or more.")
    ] = Seconds(1),
    output: options.Output = Format.TEXT,
) -> None:
    """Show what a sandbox uses now.

    Shows CPU, memory, disk, network and processes. 100 % of CPU is one core, measured over 0.2 s, with --watch since
    the look before. A dash stands for what the provider cannot measure. With --watch, a terminal shows only the newest
    look; a pipe gets one line for each look, with -o json one object.

    \b
    Example:
      skerry usage my-box
      skerry usage --watch my-box
      skerry usage my-box -o json

    \b
    Exit codes:
      0  success, also when a watched sandbox ends
        1  there is no such sandbox, or it does not run
    """

    async def work() -> None:
        from anyio import sleep

        from skerry.cli.commands.sandboxes import connect
        from skerry.core import SandboxNotFound

        async with connect(sandbox, start=False) as box:
            await box.usage()  # the CPU is measured from here
            await sleep(SAMPLE)
            if not watch:
                now = await box.usage()
                if output is Format.JSON:
                    print_json(now)
                else:
                    say(*_lines(now))
                return
            try:
                await _watch(box, max(interval, 0.1), output=output)
            except SandboxNotFound:
                note(f"{sandbox} has ended")

    execute(work, output=output)


async def _watch(box: AsyncSandbox, interval: float, *, output: Format) -> None:
    from anyio import sleep

    shown = 0
    while True:
        now = await box.usage()
        if output is Format.JSON:
            say(json.dumps({"time": time.time()} | asdict(now)))
        elif sys.stdout.isatty():
            lines = _lines(now)
            sys.stdout.write(REWRITE.format(lines=shown) if shown else "")
            say(*lines)
            shown = len(lines)
        else:
            say("  ".join(" ".join(line.split()) for line in _lines(now)))
        await sleep(interval)


def _lines(now: Usage) -> list[str]:
    return [
        f"cpu       {now.cpu_percent:.1f} %, {now.cpu_seconds:.2f} s in all",
        f"memory    {size(now.memory_used)} of {size(now.memory_total)}",
        f"disk      {size(now.disk_used)} of {size(now.disk_total)}",
        f"network   {size(now.network_rx)} in, {size(now.network_tx)} out",
        f"processes {now.pids} of {'-' if now.pids_limit is None else now.pids_limit}",
    ]


def events(
    sandbox: options.SandboxName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the sandbox is destroyed.")] = False,
    since: Annotated[
        int,
        typer.Option(
            "--since", metavar="CURSOR", min=0, help="Show only events after this cursor.", show_default=False
        ),
    ] = 0,
    output: options.Output = Format.TEXT,
) -> None:
    """List what happened to a sandbox, oldest first.

    Each event has a cursor: pass it as --since to continue from there. With --follow and -o json, each event is one
    line of JSON.

    \b
    Example:
      skerry events my-box
      skerry events --follow --since 2 my-box
    """

    async def work() -> None:
        from skerry import AsyncSandbox
        from skerry.core import registry

        provider = registry.provider()
        if not follow:
            found = await provider.events((await provider.find(sandbox)).id, since)
            if output is Format.JSON:
                print_json(found)
            else:
                rows = [(str(event.cursor), _moment(event), event.type, _details(event)) for event in found]
                print_table(("CURSOR", "TIME", "EVENT", "DETAILS"), rows, right=("CURSOR",))
            return
        box = await AsyncSandbox.find(sandbox)
        async for event in box.events(since=since):
            if output is Format.JSON:
                say(json.dumps(asdict(event)))
            else:
                say(f"{event.cursor:>6} {_moment(event)} {event.type} {_details(event)}".rstrip())

    execute(work, output=output)


def _moment(event: Event) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))


def _details(event: Event) -> str:
    return " ".join(f"{name}={value}" for name, value in event.data.items())
