"""Crashes inside: no program of the machine runs for them, whatever a process does to its own limit first."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox

PATTERN = Path("/proc/sys/kernel/core_pattern")

SETTERS = {
    "nothing": "",
    "setrlimit": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "setrlimit, the bare call": "ctypes.CDLL(None).syscall(160, 4, struct.pack('QQ', 0, 1))",
    "setrlimit, more bits than the kernel reads": "ctypes.CDLL(None).syscall(160, ctypes.c_long(1 << 32 | 4), struct.pack('QQ', 0, 1))",
    "prlimit": "ctypes.CDLL(None).syscall(302, 0, 4, struct.pack('QQ', 0, 1), None)",
    "prlimit that asks for the old limit": "ctypes.CDLL(None).syscall(302, 0, 4, struct.pack('QQ', 0, 1), bytes(16))",
    "the shell's ulimit": "import subprocess; subprocess.run(['sh', '-c', 'ulimit -S -c 0; kill -SEGV $$'])",
}
PROGRAM = "import ctypes, os, resource, struct\n{setter}\nprint(*resource.getrlimit(resource.RLIMIT_CORE), flush=True)\nos.abort()"


def crash(sandbox: Sandbox, setter: str, user: str) -> str:
    result = sandbox.exec(["python3", "-c", PROGRAM.format(setter=setter)], user=user, timeout=30)
    assert result.signal == signal.SIGABRT, result
    return result.stdout


@pytest.mark.parametrize("what", SETTERS)
def test_the_limit_of_cores_stays_at_the_one_that_calls_no_handler(sandbox: Sandbox, attacker: str, what: str) -> None:
    assert crash(sandbox, SETTERS[what], attacker) == "1 1\n"


def test_programs_that_forbid_cores_to_protect_their_keys_still_run(sandbox: Sandbox, attacker: str) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); print('set')"
    assert sandbox.exec(["python3", "-c", code], user=attacker).stdout == "set\n"
    assert sandbox.exec("ulimit -c 0 && ulimit -n 200 && ulimit -n", user=attacker).stdout == "200\n"


@pytest.fixture
def handled() -> Iterator[Callable[[], str]]:
    """The machine hands its cores to a handler of the test's own; what the handler was told of them.

    A crash of anybody else meanwhile is only written down too.
    """
    before = PATTERN.read_text()
    with tempfile.TemporaryDirectory(prefix="skc", dir="/var/tmp") as directory:
        seen = Path(directory) / "seen"
        handler = Path(directory) / "handler"
        handler.write_text(f'#!/bin/sh\necho "$@" >> {seen}\nexec cat > /dev/null\n')
        handler.chmod(0o700)
        try:
            PATTERN.write_text(f"|{handler} %P %h")
        except OSError as error:
            pytest.skip(f"core_pattern cannot be set here ({error}); run the tests as the machine's own root")
        try:
            yield lambda: seen.read_text() if seen.exists() else ""
        finally:
            PATTERN.write_text(before)


@pytest.mark.may_skip
def test_a_crash_runs_no_core_handler_of_the_machine(handled: Callable[[], str]) -> None:
    with Sandbox.create(name=f"crash-{os.getpid()}", timeout=300) as sandbox:
        name = sandbox.exec("hostname").stdout.strip()
        for user in ("user", "root"):
            for setter in SETTERS.values():
                crash(sandbox, setter, user)
    # the handler works: it is called for a process of the machine that crashes afterwards
    own = subprocess.Popen(["sh", "-c", "ulimit -c 0; kill -SEGV $$"])
    own.wait()
    until = time.monotonic() + 30
    while f"{own.pid} " not in handled() and time.monotonic() < until:
        time.sleep(0.05)
    assert f"{own.pid} " in handled()
    assert name not in handled()
