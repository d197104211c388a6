"""The command `bench`: how fast sandboxes are here, compared with a plain process."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, print_table


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Run only 10 rounds.")] = False,
    rounds: Annotated[
        int, typer.Option("-n", "--rounds", metavar="N", min=2, help="Repeat each measurement this many times.")
    ] = 100,
    output: options.Output = Format.TEXT,
) -> None:
    """Measure how fast sandboxes are on this machine.

    Measures how long it takes to create a sandbox and run a first command, and to run a further command, and compares
    that with starting a plain process. Full isolation is on. The times do not include removing the sandboxes.

    \b
    Example:
      skerry bench --quick
    """

    async def work() -> None:
        from statistics import median, quantiles

        times = await _measure(10 if quick else rounds)
        floor = median(times["plain process"])
        rows = [
            {
                "what": what,
                "p50_ms": median(values) * 1000,
                "p95_ms": quantiles(values, n=20, method="inclusive")[-1] * 1000,
                "ratio": median(values) / floor,
                "rounds": len(values),
            }
            for what, values in times.items()
        ]
        if output is Format.JSON:
            print_json(rows)
            return
        print_table(
            ("", "P50", "P95", "× PLAIN PROCESS"),
            [(f"{r['what']}", f"{r['p50_ms']:.2f} ms", f"{r['p95_ms']:.2f} ms", f"{r['ratio']:.1f}") for r in rows],
            right=("P50", "P95", "× PLAIN PROCESS"),
        )
        note(f"{len(times['plain process'])} rounds, interleaved; a plain process is posix_spawn of /bin/true")

    execute(work, output=output)


async def _measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each thing in each round, interleaved so that a slow moment of the machine affects all of them."""
    from skerry import AsyncSandbox

    times: dict[str, list[float]] = {"plain process": [], "create and first command": [], "command": []}
    for _ in range(rounds + 1):
        marks = [time.perf_counter()]
        _spawn()
        marks.append(time.perf_counter())
        async with await AsyncSandbox.create() as sandbox:
            for _ in range(2):
                await sandbox.exec(["/bin/true"], check=True)
                marks.append(time.perf_counter())
        for values, (start, end) in zip(times.values(), pairwise(marks), strict=True):
            values.append(end - start)
    return {what: values[1:] for what, values in times.items()}  # the first round warms up


def _spawn() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)
