"""The command `logs`: what a background process has written and still writes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import ago, note, print_json, print_table, size

if TYPE_CHECKING:
    from skerry import AsyncProcess, AsyncSandbox
    from skerry.core import ProcessInfo

GIVE_UP = 30.0
"""Seconds of failed attempts after which a lost connection is an error."""
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts; the last one repeats."""


def logs(
    sandbox: options.SandboxName,
    process: options.ProcessId = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the process ends.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="OFFSET", help="Skip this many bytes of each stream, or OUT,ERR.")
    ] = "0",
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Print only the last N lines of each stream.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List the processes instead.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Print what a background process has written.

    Its stdout goes to stdout, its stderr to stderr. Without PROCESS, it is the process started last. The command never
    slows the process down: the sandbox keeps the last 1 MiB of each stream, and stderr says what is missing. With
    --follow, a lost connection is opened again and nothing is printed twice. With one OFFSET, a stream that is shorter
    begins at its end. -o json has the offset to continue from in `next`; with --follow, it prints once, after the
    process has ended.

    \b
    Example:
      skerry logs my-box
      skerry logs --follow --tail 20 my-box 3
      skerry logs --since 4096 my-box 3

    \b
    Exit codes:
      0  success, also when the process failed: `skerry logs --list` shows how it ended
        1  there is no such sandbox or process, or it cannot be reached any more
    """

    async def work() -> None:
        from skerry.cli.commands.sandboxes import connect

        start = _offsets(since)
        async with connect(sandbox, start=False) as box:
            if list_:
                _print_processes(await box.processes.list(), output=output)
                return
            chosen = process if process is not None else await _last(box)
            if chosen is None:
                _print_nothing(output=output)
            elif output is Format.JSON:
                await _print_json(box, chosen, start, follow=follow, tail=tail)
            else:
                await _print_text(box, chosen, start, follow=follow, tail=tail)

    execute(work, output=output)


def _offsets(text: str) -> int | tuple[int, int]:
    """Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    parts = text.split(",")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InvalidArgument(
            f"--since {text!r} is not an offset", hint="give a number of bytes, or two: stdout,stderr"
        )
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


async def _last(sandbox: AsyncSandbox) -> int | None:
    """The process started last; None if there is none."""
    known = await sandbox.processes.list()
    if not known:
        return None
    last = known[-1]
    if len(known) > 1 and sys.stderr.isatty():
        note(f"process {last.id}, the last of {len(known)}: {last.command[:60]}")
    return last.id


async def _print_json(
    sandbox: AsyncSandbox, process_id: int, since: int | tuple[int, int], *, follow: bool, tail: int | None
) -> None:
    process = await sandbox.processes.get(process_id, view=True)
    if follow:
        await process.wait()
    kept = await process.output(since=since)
    text = {"stdout": _last_lines(kept.stdout, tail), "stderr": _last_lines(kept.stderr, tail)}
    print_json(asdict(await process.poll()) | text | {"gap": kept.gap, "next": kept.next})


async def _print_text(
    sandbox: AsyncSandbox, process_id: int, since: int | tuple[int, int], *, follow: bool, tail: int | None
) -> None:
    from skerry.cli.terminal.stdio import write

    process = await sandbox.processes.get(process_id, view=True)
    kept = await process.output(since=since)
    if kept.gap:
        _note_gap(kept.gap)
    await write(1, _last_lines(kept.stdout, tail))
    await write(2, _last_lines(kept.stderr, tail))
    if follow:
        await _follow(process, list(kept.next))


async def _follow(process: AsyncProcess, position: list[int]) -> None:
    """Print what comes after `position` until the process ends, over as many connections as necessary."""
    import anyio

    from skerry.core import ConnectionLost

    failures, lost_at = 0, 0.0
    while True:
        before = list(position)
        try:
            await _print_from(process, position)
            return
        except ConnectionLost:
            now = anyio.current_time()
            if position != before or not failures:
                failures, lost_at = 0, now
                note("connection lost; attaching again")
            if now - lost_at > GIVE_UP:
                raise
        await anyio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
        failures += 1


async def _print_from(process: AsyncProcess, position: list[int]) -> None:
    """Print what comes after `position`, and advance it. Raises ConnectionLost."""
    from skerry.cli.terminal.stdio import write

    gap = 0
    async with process.attach(since=(position[0], position[1])) as stream:
        async for chunk in stream:
            if stream.gap > gap:
                _note_gap(stream.gap - gap)
                gap = stream.gap
            fd = 1 if chunk.stream == "stdout" else 2
            await write(fd, chunk.data)
            position[fd - 1] = chunk.offset + len(chunk.data)


def _note_gap(count: int) -> None:
    note(f"{count} bytes are missing here: they are no longer kept")


def _last_lines(data: bytes, count: int | None) -> bytes:
    """The last `count` lines; all of them for None."""
    if count is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _print_nothing(*, output: Format) -> None:
    if output is Format.JSON:
        print_json(None)
    else:
        note("no background processes; `skerry exec --detach` starts one")


def _print_processes(processes: list[ProcessInfo], *, output: Format) -> None:
    if output is Format.JSON:
        print_json(processes)
    elif not processes:
        _print_nothing(output=output)
    else:
        print_table(
            ("PROCESS", "STATUS", "STARTED", "WRITTEN", "COMMAND"),
            [
                (str(process.id), _status(process), ago(process.started_at), _written(process), process.command[:200])
                for process in processes
            ],
            right=("PROCESS", "WRITTEN"),
        )


def _status(process: ProcessInfo) -> str:
    from skerry.core import ExecStatus

    if process.status is ExecStatus.OUT_OF_MEMORY:
        return "out of memory"
    if process.exit_code is not None:
        return f"exited {process.exit_code}"
    return f"signal {process.signal}" if process.signal is not None else process.status.value


def _written(process: ProcessInfo) -> str:
    return size(process.stdout_bytes + process.stderr_bytes)
