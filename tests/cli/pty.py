"""The `skerry` program with a real pseudo-terminal as its stdin, stdout and stderr."""

from __future__ import annotations

import errno
import os
import pty
import select
import subprocess
import termios
from types import TracebackType
from typing import Self

from tests.cli.conftest import SKERRY


class Terminal:
    """Starts the program; `output` is everything it has shown."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, cols: int = 100) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, cols))
        env = os.environ | {"TERM": "xterm-256color"} | (env or {})
        self.process = subprocess.Popen(
            [SKERRY, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self.output = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def read_until(self, wanted: bytes) -> None:
        while wanted not in self.output:
            assert self._read(), self.output

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def finish(self) -> int:
        """Everything up to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=30)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 30)
        assert ready, self.output
        try:
            data = os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # the program and all it started have closed their side
                raise
            return False
        self.output += data
        return bool(data)
