"""Attacks from inside: each must be blocked, as the sandbox's user and as its root."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from skerry import Sandbox
from skerry.audit.attack import PROGRAM, message
from skerry.audit.attempt import Answer, Attempt, Verdict, judge

Attack = Callable[[str | Attempt], str]
_blocked = 0


def tried(sandbox: Sandbox, body: str | Attempt, user: str, given: Mapping[str, Any] = MappingProxyType({})) -> Answer:
    """Make an attempt inside, or run the body of one; what came back."""
    attempt = Attempt(name="attack", means="", body=body) if isinstance(body, str) else body
    result = sandbox.exec(PROGRAM, user=user, stdin=message([attempt], dict(given)), timeout=30)
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stderr
    return Answer(*json.loads(lines[1]))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(timeout=1800) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Sandbox]:
    """A second sandbox that nothing done in the first may reach or hurt."""
    with Sandbox.create(timeout=1800) as sandbox:
        yield sandbox


@pytest.fixture(params=["user", "root"])
def attacker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def attack(sandbox: Sandbox, attacker: str) -> Attack:
    """Make an attempt inside: it must be denied. The body of one must end in an error. Its name is returned."""

    def run(body: str | Attempt) -> str:
        global _blocked
        answer = tried(sandbox, body, attacker)
        if isinstance(body, Attempt):
            assert judge(body, answer) is Verdict.DENIED, f"as {attacker}: {answer}"
        else:
            assert answer.how in ("error", "silent"), f"as {attacker}: {answer}"
        _blocked += 1
        return answer.what

    return run


def still_works(sandbox: Sandbox, within: float = 5.0) -> float:
    """The sandbox answers and can use files; the seconds that took."""
    start = time.monotonic()
    assert sandbox.exec("echo alive", timeout=within).stdout == "alive\n"
    sandbox.files.write("/tmp/alive", b"yes")
    assert sandbox.files.read("/tmp/alive") == b"yes"
    return time.monotonic() - start


def host_works() -> None:
    subprocess.run(["/bin/true"], check=True, timeout=5)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _blocked:
        terminalreporter.section("isolation")
        terminalreporter.write_line(f"{_blocked} attacks from inside were blocked")
