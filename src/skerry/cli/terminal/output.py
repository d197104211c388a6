"""What the commands print: lines, errors, JSON, tables, ages and sizes.

Names and texts come from sandboxes, other users and servers. A terminal would obey escape sequences in them, so
everything that is printed goes through here, except what a program in a sandbox writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from skerry.cli.options import Format


def printable(text: str) -> str:
    """The text as one line that cannot move, hide or reorder anything: it escapes what is not printable."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(*lines: str) -> None:
    """Print lines on stdout: printable on a terminal, elsewhere byte for byte."""
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def print_error(message: str, code: str, hint: str = "", *, retryable: bool = False, output: Format) -> None:
    """Print one line, and one for the hint in the words of the command line; or one JSON object."""
    from skerry.core import hint_for

    hint = hint_for("cli", hint)
    if output is Format.JSON:
        error = {"code": code, "message": message, "hint": hint, "retryable": retryable}
        text = json.dumps({"error": error})
    else:
        red, end = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
        text = f"{red}error:{end} {printable(' '.join(message.split()))} ({code})"
        if hint:
            text += f"\nhint: {printable(' '.join(hint.split()))}"
    print(text, file=sys.stderr)


def note(text: str) -> None:
    """Print a line for a person, beside the data."""
    print(printable(text), file=sys.stderr)


def print_json(data: object) -> None:
    print(json.dumps(data, default=_plain, indent=2))


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print aligned columns; those named in `right` are aligned right. Nothing is cut in the output to a pipe."""
    cells = [list(map(printable, row) if sys.stdout.isatty() else row) for row in rows]
    plain = _plain_table([headers, *cells], [name in right for name in headers])
    if plain is None:
        _print_rich_table(headers, cells, right)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in plain))


def _plain_table(rows: list[Sequence[str]], right: Sequence[bool]) -> list[str] | None:
    """The lines of a table that is ASCII and fits. rich prints the same, and takes a third of `ps` to import."""
    terminal = sys.stdout.isatty()
    if not all(cell.isascii() and cell.isprintable() for row in rows for cell in row):
        return None
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap, edge = ("   ", " ") if terminal else ("  ", "")
    lines = []
    for row in rows:
        aligned = zip(row, widths, right, strict=True)
        lines.append(edge + gap.join(cell.rjust(n) if last else cell.ljust(n) for cell, n, last in aligned) + edge)
    if not terminal:
        return lines
    if len(lines[0]) > os.get_terminal_size(sys.stdout.fileno()).columns:
        return None
    bold, end = ("", "") if os.environ.get("TERM") in (None, "dumb", "unknown") else ("\033[1m", "\033[0m")
    empty, rule = " " * len(lines[0]), edge + "─" * (len(lines[0]) - 2) + edge
    return [empty, f"{bold}{lines[0]}{end}", rule, *lines[1:], empty]


def _print_rich_table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True, justify="right" if header in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if terminal else 10_000, highlight=False).print(table)


def duration(seconds: float) -> str:
    """A duration for people: 850 ms, 42 s, 5 min, 3 h, 2 d."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for limit, unit, name in ((100, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def ago(moment: float) -> str:
    """How long ago a time since the epoch is."""
    return duration(max(0.0, time.time() - moment))


def size(count: int | None) -> str:
    from skerry.core import human_size

    return "-" if count is None else human_size(count)
