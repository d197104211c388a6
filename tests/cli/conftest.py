"""The installed `skerry` program, run as a user runs it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skerry import Sandbox

SKERRY = str(Path(sys.executable).with_name("skerry"))


@dataclass(frozen=True)
class Outcome:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error of `-o json`."""
        return json.loads(self.err)["error"]


@contextmanager
def _input(stdin: bytes | int) -> Iterator[int]:
    """A descriptor to read it from."""
    if not isinstance(stdin, bytes):
        fd = os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin)
        try:
            yield fd
        finally:
            os.close(fd)
        return

    def feed() -> None:
        with suppress(BrokenPipeError), open(writing, "wb") as pipe:
            pipe.write(stdin)

    reading, writing = os.pipe()
    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield reading
    finally:
        os.close(reading)
        feeding.join()


class Skerry:
    """Runs the program and keeps what came out of it."""

    def __init__(self) -> None:
        self._calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, str(Path(__file__).with_name("loaded.py")), str(calls.fileno())]
        with calls:
            self._loaded = subprocess.Popen(program, pass_fds=[calls.fileno()], stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self._calls.close()
        assert self._loaded.wait(timeout=60) == 0

    def __call__(
        self, *arguments: str, stdin: bytes | int = subprocess.DEVNULL, env: dict[str, str] | None = None
    ) -> Outcome:
        """A fork of the loaded program; where a variable means something to Python itself it is loaded anew."""
        whole = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | (env or {})
        if not any(name.startswith(("PATH", "PYTHON", "LANG", "LC_")) for name in env or ()):
            return self._fork(arguments, stdin, whole)
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = subprocess.run([SKERRY, *arguments], capture_output=True, timeout=60, env=whole, check=False, **given)
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def _fork(self, arguments: tuple[str, ...], stdin: bytes | int, env: dict[str, str]) -> Outcome:
        call = json.dumps({"arguments": arguments, "env": env, "cwd": os.getcwd()}).encode()
        reading, writing = os.pipe()
        with (
            open(reading, "rb", buffering=0) as report,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            _input(stdin) as given,
        ):
            socket.send_fds(self._calls, [call], [given, out.fileno(), err.fileno(), writing])
            os.close(writing)
            pid = int(report.readline())
            if not select.select([report], [], [], 60)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([SKERRY, *arguments], 60)
            code = int(report.readline())
            out.seek(0)
            err.seek(0)
            return Outcome(code, out.read(), err.read().decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([SKERRY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def listed(self) -> list[str]:
        """What `skerry ps` lists; it sweeps in passing."""
        return self("ps", "-q").text.split()

    def ids(self) -> list[str]:
        """What is there, without the half second that a program takes to say it."""
        return sorted(path.name for path in (Path(os.environ["SKERRY_HOME"]) / "sandboxes").glob("sb-*"))


@pytest.fixture(scope="session")
def skerry() -> Iterator[Skerry]:
    made = Skerry()
    yield made
    made.close()


@pytest.fixture
def nothing_left(skerry: Skerry) -> Iterator[None]:
    """After the test there are exactly the sandboxes that were there before it."""
    before = skerry.ids()
    yield
    assert skerry.ids() == before


@contextmanager
def sandbox() -> Iterator[str]:
    made = Sandbox.create()
    made.close()
    yield made.id
    made.destroy()


@pytest.fixture
def box() -> Iterator[str]:
    """The id of a sandbox that is there for the test alone."""
    with sandbox() as made:
        yield made


@pytest.fixture
def other() -> Iterator[str]:
    """A second one."""
    with sandbox() as made:
        yield made
