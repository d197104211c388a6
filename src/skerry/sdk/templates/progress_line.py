"""A line on stderr that says what a build does, for a person at a terminal whose program asks for no callbacks."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from skerry.sdk.log import template_log

if TYPE_CHECKING:
    from skerry.sdk.templates.builder import BuildProgress

SWITCH = "SKERRY_PROGRESS"
"""The variable that turns the line off with 0."""


def progress_line() -> ProgressLine | None:
    """The line, if somebody looks: not in a pipe or a notebook, and not where the log shows the same."""
    logged = template_log.isEnabledFor(logging.INFO) and template_log.hasHandlers()
    if logged or os.environ.get(SWITCH) == "0" or os.environ.get("TERM") == "dumb":
        return None
    stream = sys.stderr
    return ProgressLine(stream) if stream is not None and stream.isatty() else None


class ProgressLine:
    """The step, the seconds so far, and what the step wrote last. A build's output cannot move or hide anything."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._started = stream, time.monotonic()
        self._step = ""

    def progress(self, progress: BuildProgress) -> None:
        if not progress.step:
            self.clear()
            return
        self._step = f"{progress.template}: step {progress.done + 1} of {progress.total}: {progress.step}"
        self._draw("")

    def log(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines and self._step:
            self._draw(f" | {lines[-1]}")

    def clear(self) -> None:
        if self._step:
            self._step = ""
            self._write("\r\x1b[K")

    def _draw(self, last: str) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
        text = f"building {self._step} ({time.monotonic() - self._started:.0f} s){last}"
        plain = "".join(char if char.isprintable() else " " for char in text)
        self._write(f"\r{plain[: width - 1]}\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the build continues
