"""What the first page promises, shown with real sandboxes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from skerry import Resources, Sandbox
from skerry.providers.local.sandbox import record
from tests import inventory

MIB = 1 << 20


def resident(pid: int | str) -> int:
    """Bytes of memory of one process that are its own: what it shares with its binary on disk does not grow."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def agent_pid(home: Path, sandbox: Sandbox) -> int:
    init = record.read(home / "sandboxes" / sandbox.id).init
    assert init is not None
    return init.pid


def test_a_gigabyte_of_output_keeps_everybody_s_memory_flat(
    skerry_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Sandbox.create(resources=Resources(memory=256 * MIB)) as sandbox:
        sandbox.exec("head -c 32M /dev/zero")  # buffers and threads are there
        agent = agent_pid(skerry_home, sandbox)
        client_before, agent_before = resident("self"), resident(agent)
        peaks = [client_before, agent_before]

        def look(_: str) -> None:
            peaks[0] = max(peaks[0], resident("self"))
            peaks[1] = max(peaks[1], resident(agent))

        started = time.monotonic()
        script = "head -c 1G /dev/zero; (head -c 20M /dev/zero | tr '\\0' e; echo; echo the last words) >&2; exit 3"
        result = sandbox.exec(script, on_stderr=look, output_limit=8 * MIB, timeout=110)
        seconds = time.monotonic() - started
    with capsys.disabled():
        print(
            f"\n1 GiB of output in {seconds:.1f} s: client {client_before / MIB:.1f} → {peaks[0] / MIB:.1f} MiB, "
            f"agent {agent_before / MIB:.2f} → {peaks[1] / MIB:.2f} MiB, dropped {result.dropped_bytes / MIB:.0f} MiB"
        )
    assert result.exit_code == 3
    assert result.stderr.endswith("\nthe last words\n")
    assert len(result.stdout_bytes) == 8 * MIB
    assert result.truncated
    assert result.dropped_bytes == (1 << 30) + 20 * MIB + len("\nthe last words\n") - 16 * MIB
    assert peaks[0] - client_before < 48 * MIB  # two limits of 8 MiB, joined once, and what is in flight
    assert peaks[1] - agent_before < 4 * MIB


STUBBORN = r"""
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
def hide(depth):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if depth: hide(depth - 1)
            print("still here", os.getpid(), flush=True)  # the pipes are held open by all of them
            while True:
                try: time.sleep(60)
                except BaseException: pass
        os._exit(0)
for _ in range(5):
    hide(3)
while True: time.sleep(60)
"""


@pytest.mark.parametrize("user", ["user", "root"])
def test_a_stubborn_process_tree_is_gone_at_the_timeout(user: str) -> None:
    with Sandbox.create() as sandbox:
        before = inventory.processes_of(sandbox.id)
        started = time.monotonic()
        result = sandbox.exec(["python3", "-c", STUBBORN], user=user, timeout=4)
        assert time.monotonic() - started < 15
        assert result.timed_out
        assert result.exit_code is None
        assert result.stdout.count("still here") >= 15
        assert inventory.processes_of(sandbox.id) == before


def test_a_fork_bomb_is_gone_at_the_timeout() -> None:
    with Sandbox.create(resources=Resources(pids=256)) as sandbox:
        sandbox.files.exists("/")  # the workers are there
        before = inventory.processes_of(sandbox.id)
        # The main process must not need another fork to live on: the bomb may have taken the last one.
        result = sandbox.exec("b() { b | b & }; (b) & exec sleep 60", timeout=1.5)
        assert result.timed_out
        assert inventory.processes_of(sandbox.id) == before


def test_exec_and_background_processes_are_not_mixed_up() -> None:
    """A command returns when it ends, whatever it leaves running; that goes on, and dies with the sandbox."""
    with Sandbox.create() as sandbox:
        result = sandbox.exec("(sleep 2; echo late > /workspace/.l; mv /workspace/.l /workspace/late) & echo now")
        assert not sandbox.files.exists("/workspace/late")
        assert result.stdout == "now\n"
        sandbox.exec("until [ -e /workspace/late ]; do sleep 0.05; done", timeout=30, check=True)
        assert sandbox.files.read_text("/workspace/late") == "late\n"
        left = inventory.processes_of(sandbox.id)
    assert left
    assert inventory.processes_of(sandbox.id) == set()
