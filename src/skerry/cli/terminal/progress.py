"""A bar on stderr for a transfer that a person waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from skerry.cli.terminal.output import printable

Report = Callable[[int, int | None], object]


@contextmanager
def progress_bar(label: str, *, wanted: bool) -> Iterator[Report | None]:
    """A function to call with the bytes done and in all; None where nobody looks. Removes the bar at the end."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(label)[-40:], total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
