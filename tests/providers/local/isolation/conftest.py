"""Attacks from inside: each must be blocked, as the sandbox's user and as its root."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skerry import Sandbox

Attack = Callable[[str], str]
_blocked = 0

PRELUDE = """
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(*args):
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attack():
{body}
try:
    got = attack()
except OSError as error:
    print("BLOCKED", errno.errorcode.get(error.errno, error.errno))
else:
    print("BREACH", repr(got)[:200])
"""


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
    """Run the body of a Python function inside; it must end in an OSError. The errno's name is returned."""

    def run(body: str) -> str:
        global _blocked
        code = PRELUDE.format(body="\n".join(f"    {line}" for line in body.strip("\n").splitlines()))
        result = sandbox.exec(["python3", "-c", code], user=attacker, timeout=30)
        outcome = result.stdout.split()
        assert outcome, result.stderr
        assert outcome[0] == "BLOCKED", f"as {attacker}: {result.stdout}{result.stderr}"
        _blocked += 1
        return outcome[1]

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
