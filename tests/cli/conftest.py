"""The installed `skerry` program, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


class Skerry:
    """Runs the program and keeps what came out of it."""

    def __call__(
        self, *arguments: str, stdin: bytes | int = subprocess.DEVNULL, env: dict[str, str] | None = None
    ) -> Outcome:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | (env or {})
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = subprocess.run([SKERRY, *arguments], capture_output=True, timeout=60, env=env, check=False, **given)
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([SKERRY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def listed(self) -> list[str]:
        """What `skerry ps` lists; it sweeps in passing."""
        return self("ps", "-q").text.split()

    def ids(self) -> list[str]:
        """What is there, without the half second that a program takes to say it."""
        return sorted(path.name for path in (Path(os.environ["SKERRY_HOME"]) / "sandboxes").glob("sb-*"))


@pytest.fixture(scope="session")
def skerry() -> Skerry:
    return Skerry()


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
