"""How a build is shown: a bar and the steps' output on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skerry.cli.options import Format
from skerry.cli.terminal.output import note, printable

if TYPE_CHECKING:
    from skerry.sdk import BuildProgress


@dataclass(frozen=True, slots=True)
class Display:
    """The callbacks for a build."""

    on_progress: Callable[[BuildProgress], object]
    on_log: Callable[[str], object] | None


@contextmanager
def build_display(*, output: Format, logs: bool) -> Iterator[Display]:
    """Shows builds on stderr while it is open; nothing for JSON. `logs` shows the output of steps too."""
    if output is Format.JSON:
        yield Display(_ignore, None)
    elif not sys.stderr.isatty():
        yield Display(_print_step, _print_log if logs else None)
    else:
        with _bar(logs=logs) as display:
            yield display


def _ignore(progress: BuildProgress) -> None:
    """Instead of the line that the SDK would show."""


def _print_step(progress: BuildProgress) -> None:
    if progress.step:
        note(f"{progress.template}: step {progress.done + 1} of {progress.total}: {progress.step}")


def _print_log(text: str) -> None:
    sys.stderr.write(text)


@contextmanager
def _bar(*, logs: bool) -> Iterator[Display]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[step]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, int] = {}

        def show(progress: BuildProgress) -> None:
            name = progress.template
            if name not in tasks:
                tasks[name] = bar.add_task(printable(name)[-40:], total=progress.total, step="")
            bar.update(tasks[name], completed=progress.done, step=printable(progress.step)[:60])  # type: ignore[arg-type]

        def write(text: str) -> None:
            bar.console.print(text.rstrip("\n"), markup=False, soft_wrap=True)

        yield Display(show, write if logs else None)
