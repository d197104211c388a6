"""Tables: what is printed without rich is what rich prints."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable

import pytest

from skerry.cli.terminal import output

HEADERS = ("ID", "NAME", "MEMORY")
ROWS = [("sb-1", "-", "512 MiB"), ("sb-2345", "a name", "1")]


def _shown(show: Callable[[], None], monkeypatch: pytest.MonkeyPatch, columns: int | None) -> str:
    """What `show` prints to a terminal of that width, or to a pipe."""
    reading, writing = os.pipe() if columns is None else pty.openpty()
    if columns is not None:
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with (
        open(reading, "rb", buffering=0) as source,
        open(writing, "w", encoding="utf-8") as target,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", target)
        patch.setenv("COLUMNS", str(columns or 80))
        show()
        target.flush()
        found = source.read(65536).decode().replace("\r", "")
    return re.sub(r"\x1b\[[0-9;]*m", "", found)


@pytest.mark.parametrize("columns", [None, 80, 15])
@pytest.mark.parametrize("rows", [ROWS, [], [("sb-1", "größer ☂", "")]], ids=["ascii", "empty", "other"])
def test_a_table_is_the_one_that_rich_prints(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, rows: list[tuple[str, ...]]
) -> None:
    def by_rich() -> None:
        output._print_rich_table(HEADERS, rows, ("MEMORY",))

    ours = _shown(lambda: output.print_table(HEADERS, rows, right=("MEMORY",)), monkeypatch, columns)
    assert ours == _shown(by_rich, monkeypatch, columns)
    assert "ID" in ours or columns == 15
