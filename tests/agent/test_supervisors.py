"""What a command of root's can do to its supervisor: timeouts, kills and exits stay right whatever it is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from skerry import wire
from tests.agent.driver.client import Agent, Connection, pids_with, state, status, trace, wait_until


def marker() -> str:
    return f"7{time.monotonic_ns() % 10**9}"


@pytest.mark.parametrize("stops", ["kill -STOP $PPID", "while kill -STOP $PPID; do :; done &"])
def test_a_stopped_supervisor_does_not_outlive_the_timeout(connection: Connection, stops: str) -> None:
    mark = marker()
    result = connection.sh(f"{stops}\n(sleep {mark} &); sleep {mark}", user="root", timeout_ms=300)
    assert result.exit.status == "timed_out"
    assert result.exit.duration_us < 5_000_000
    wait_until(lambda: pids_with(mark) == [])


def test_a_stopped_supervisor_tells_the_exit(connection: Connection) -> None:
    result = connection.sh("kill -STOP $PPID; echo out; exit 3", user="root")
    assert (result.exit.status, result.exit.exit_code, result.stdout) == ("exited", 3, b"out\n")


def test_a_stopped_supervisor_passes_a_kill_on(connection: Connection) -> None:
    mark = marker()
    stream, started = connection.start("/bin/sh", "-c", f"kill -STOP $PPID; setsid sleep {mark}", user="root")
    wait_until(lambda: pids_with(f"sleep\0{mark}"))
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL, scope=1), wire.Empty)
    assert connection.output(stream)[0].status == "signaled"
    assert pids_with(mark) == []


def test_a_traced_supervisor_does_not_outlive_the_timeout(connection: Connection) -> None:
    mark = marker()
    stream, started = connection.start("/bin/sh", "-c", f"(sleep {mark} &); sleep {mark}", user="root", timeout_ms=1000)
    trace(state(started.pid)[1])
    exit, _, _ = connection.output(stream)
    assert exit.status == "timed_out"
    wait_until(lambda: pids_with(mark) == [])


def test_signals_that_can_be_caught_do_nothing_to_a_supervisor(connection: Connection) -> None:
    caught = " ".join(str(number) for number in range(1, 65) if number not in (signal.SIGKILL, signal.SIGSTOP))
    again = f"for s in {caught}; do kill -$s $PPID || exit 9; done"
    result = connection.sh(f"for i in $(seq 100); do {again}; done; echo fine", user="root")  # whatever it is at
    assert (result.exit.exit_code, result.stdout) == (0, b"fine\n")


def test_supervisors_and_workers_block_every_signal(agent: Agent, connection: Connection) -> None:
    """Those that a C library keeps to itself too (32 to 34), which it leaves out of "all"."""
    every = set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP}

    def blocked(pid: int) -> set[int]:
        mask = int(status(pid)["SigBlk"], 16)
        return {number for number in every if mask >> (number - 1) & 1}

    workers = agent.children()
    for pid in workers:
        wait_until(lambda pid=pid: blocked(pid) == every)
    _, started = connection.start("/bin/sleep", "60")
    supervisor = state(started.pid)[1]
    wait_until(lambda: blocked(supervisor) == every - {signal.SIGCHLD})  # for which it waits
    time.sleep(0.1)  # a C library blocks all signals for the moment of a fork
    assert blocked(supervisor) == every - {signal.SIGCHLD}
    assert all(blocked(pid) == every for pid in workers)


def test_a_command_that_ended_by_itself_is_told_so_though_its_supervisor_was_killed(
    agent: Agent, connection: Connection, work: Path
) -> None:
    stream, started = connection.start("/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo out; exit 7")
    supervisor = state(started.pid)[1]
    os.kill(agent.process.pid, signal.SIGSTOP)  # so that it cannot be faster than the command
    try:
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: state(started.pid)[1] == agent.process.pid)
        (work / "go").touch()
        wait_until(lambda: state(started.pid)[0] == "Z")
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)
    exit, stdout, _ = connection.output(stream)
    assert (exit.status, exit.exit_code, stdout) == ("exited", 7, b"out\n")


def test_the_output_of_a_program_that_killed_its_supervisor_is_kept(connection: Connection) -> None:
    result = connection.sh("echo out; kill -9 $PPID; sleep 600", user="root")
    assert (result.exit.status, result.exit.signal, result.stdout) == ("signaled", 9, b"out\n")


def test_what_an_ended_command_left_dies_with_its_supervisor(connection: Connection) -> None:
    mark = marker()
    result = connection.sh(f"sleep {mark} & echo $PPID", user="root")
    wait_until(lambda: pids_with(f"sleep\0{mark}"))
    os.kill(int(result.stdout), signal.SIGKILL)
    wait_until(lambda: pids_with(mark) == [])
