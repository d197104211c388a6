"""Processes in the background: rings, attaching, signals, the table."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.driver.client import BIG, Agent, AgentError, Connection, pids_with, wait_until

FOREGROUND, STDIN, VIEW = 1, 2, 1
RING = 1 << 20


def attach(connection: Connection, id: int, **options: int) -> tuple[int, wire.Attached]:
    options.setdefault("window", BIG)
    stream = connection.open(wire.Attach(id=id, **options))
    return stream, connection.reply(stream, wire.Attached, final=False)


def spawn(connection: Connection, script: str, **options: object) -> int:
    """Starts in the background and detaches."""
    stream, started = connection.start("/bin/sh", "-c", script, **options)
    connection.send(stream, Type.CLOSE)
    return started.id


def ended(connection: Connection, id: int) -> bool:
    return connection.processes()[id].status != "running"


def test_a_detached_process_runs_on_and_can_be_replayed(agent: Agent, connection: Connection) -> None:
    id = spawn(connection, "sleep 0.1; echo one; echo two >&2; exit 4")
    connection.close()
    other = agent.connect()
    wait_until(lambda: ended(other, id))
    for _ in range(2):  # as often as one likes
        stream, attached = attach(other, id)
        assert (attached.start_stdout, attached.start_stderr) == (0, 0)
        exit, stdout, stderr = other.output(stream)
        assert (exit.exit_code, stdout, stderr) == (4, b"one\n", b"two\n")
    stream, attached = attach(other, id, since_stdout=2, since_stderr=-1)
    assert (attached.start_stdout, attached.start_stderr) == (2, 4)
    assert other.output(stream)[1:] == (b"e\n", b"")


def test_with_nobody_attached_a_process_never_blocks_and_the_gap_is_reported(connection: Connection) -> None:
    id = spawn(connection, "head -c 5000000 /dev/zero; echo end", window=0)
    wait_until(lambda: ended(connection, id))
    assert connection.processes()[id].stdout_bytes == 5_000_004
    stream, attached = attach(connection, id)
    assert 5_000_004 - RING <= attached.start_stdout < 5_000_004 - RING // 2
    exit, stdout, _ = connection.output(stream)
    assert len(stdout) == 5_000_004 - attached.start_stdout
    assert stdout.endswith(b"\0end\n")
    assert exit.stdout_bytes == 5_000_004


def test_a_full_ring_keeps_its_last_mebibyte_to_the_byte(connection: Connection) -> None:
    id = spawn(connection, "head -c 2000000 /dev/zero; sleep 0.2; printf x; sleep 0.1; printf y")
    wait_until(lambda: ended(connection, id))
    stream, attached = attach(connection, id)
    assert attached.start_stdout == 2_000_002 - RING
    assert connection.output(stream)[1] == b"\0" * (RING - 2) + b"xy"


def test_a_controller_holds_the_process_back(connection: Connection) -> None:
    stream, started = connection.start("/bin/sh", "-c", "head -c 3000000 /dev/zero; echo end", window=5000)
    time.sleep(0.3)
    assert connection.processes()[started.id].stdout_bytes <= RING + 5000
    assert connection.processes()[started.id].status == "running"
    connection.credit(stream, 1, BIG)
    connection.credit(stream, 2, BIG)
    exit, stdout, _ = connection.output(stream)
    assert (len(stdout), exit.exit_code) == (3_000_004, 0)


def test_a_held_back_process_goes_on_when_its_controller_leaves(connection: Connection) -> None:
    id = spawn(connection, "head -c 3000000 /dev/zero; echo end", window=10)
    wait_until(lambda: ended(connection, id))


def test_a_viewer_never_holds_the_process_back_and_jumps(agent: Agent, connection: Connection) -> None:
    stream, started = connection.start("/bin/sh", "-c", "read x; head -c 4000000 /dev/zero; echo end", flags=STDIN)
    viewer = agent.connect()
    view, _ = attach(viewer, started.id, flags=VIEW, window=10)
    connection.data(stream, b"go\n", end=True)
    exit, stdout, _ = connection.output(stream)
    assert len(stdout) == 4_000_004
    viewer.credit(view, 1, BIG)
    offsets = []
    while (frame := viewer.next(view)).type == Type.DATA:
        if frame.flags & wire.CHANNEL_MASK == 1:
            offsets.append(wire.parse_data(frame.payload)[0])
    assert (offsets[0], offsets[1]) == (0, 4_000_004 - RING)
    assert wire.Exit.decode(frame.payload) == exit


def test_attaching_takes_over_and_the_former_controller_becomes_a_viewer(agent: Agent, connection: Connection) -> None:
    first, started = connection.start("/bin/cat", flags=STDIN)
    other = agent.connect()
    second, _ = attach(other, started.id)
    connection.data(first, b"from the first\n")  # in flight when it was taken over: dropped
    other.data(second, b"from the second\n")
    assert wire.parse_data(other.next(second).payload)[1] == b"from the second\n"
    assert wire.parse_data(connection.next(first).payload)[1] == b"from the second\n"
    other.send(second, Type.CLOSE)  # stdin stays open without a controller
    third, attached = attach(other, started.id, since_stdout=-1)
    assert attached.start_stdout == 16
    other.data(third, b"more\n", end=True)
    assert other.output(third)[1] == b"more\n"
    assert connection.output(first)[0].exit_code == 0


def test_a_viewer_sees_a_foreground_process_end_with_its_owner(agent: Agent, connection: Connection) -> None:
    first, started = connection.start("/bin/sleep", "60", flags=FOREGROUND)
    other = agent.connect()
    second, _ = attach(other, started.id, flags=VIEW)
    connection.send(first, Type.CLOSE)
    exit, _, _ = other.output(second)
    assert (exit.status, exit.exit_code, exit.signal) == ("cancelled", None, None)


def test_input_from_a_viewer_breaks_its_connection(agent: Agent, connection: Connection) -> None:
    stream, started = connection.start("/bin/cat", flags=STDIN)
    viewer = agent.connect()
    view, _ = attach(viewer, started.id, flags=VIEW)
    viewer.data(view, b"no")
    assert viewer.broken() == "INVALID_ARGUMENT"
    connection.data(stream, b"", end=True)
    assert connection.output(stream)[0].exit_code == 0


@pytest.mark.parametrize("options", [{"since_stdout": 99}, {"since_stderr": 1}, {"since_stdout": -2}, {"window": -1}])
def test_an_offset_beyond_the_end_is_refused(connection: Connection, options: dict[str, int]) -> None:
    id = spawn(connection, "echo x")
    wait_until(lambda: ended(connection, id))
    with pytest.raises(AgentError) as caught:
        attach(connection, id, **options)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_unknown_processes_are_not_found(connection: Connection) -> None:
    for message in (wire.Attach(id=99), wire.Signal(id=99, signal=15)):
        with pytest.raises(AgentError) as caught:
            connection.ask(message, wire.Empty)
        assert caught.value.code == "PROCESS_NOT_FOUND"


def test_the_table_says_what_runs_and_what_ended(connection: Connection) -> None:
    running = connection.start("/bin/sh", "-c", "sleep 30; true", "x" * 9000)[1]
    done = spawn(connection, "echo hello; exit 3", user="root")
    wait_until(lambda: ended(connection, done))
    table = connection.processes()
    assert list(table) == [running.id, done]
    first, second = table[running.id], table[done]
    assert (first.status, first.exit_code, first.user, first.pid) == ("running", None, "user", running.pid)
    assert first.argv[:3] == (b"/bin/sh", b"-c", b"sleep 30; true")
    assert sum(map(len, first.argv)) <= 4096
    assert (second.status, second.exit_code, second.user, second.stdout_bytes) == ("exited", 3, "root", 6)
    assert second.argv == (b"/bin/sh", b"-c", b"echo hello; exit 3")


def test_64_ended_processes_are_kept(connection: Connection) -> None:
    ids = []
    for number in range(70):
        stream, started = connection.start("/bin/echo", str(number))
        connection.output(stream)
        ids.append(started.id)
    assert list(connection.processes()) == ids[-64:]
    stream, _ = attach(connection, ids[-1])
    assert connection.output(stream)[1] == b"69\n"


def test_rings_of_all_processes_stay_within_16_mebibytes(agent: Agent, connection: Connection) -> None:
    ids = []
    for _ in range(20):
        id = spawn(connection, "head -c 1500000 /dev/zero")
        wait_until(functools.partial(ended, connection, id))
        ids.append(id)
    kept = list(connection.processes())
    assert kept == ids[-len(kept) :]
    assert 10 <= len(kept) <= 16
    if agent.binary.name == "agent":
        assert agent.rss_kb() < 24_000


def test_a_signal_reaches_the_group(connection: Connection) -> None:
    script = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    stream, started = connection.start("/bin/sh", "-c", script)
    assert connection.next(stream).type == Type.DATA
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGUSR1), wire.Empty)
    exit, stdout, _ = connection.output(stream)
    assert (exit.exit_code, stdout) == (5, b"got\n")
    with pytest.raises(AgentError) as caught:
        connection.ask(wire.Signal(id=started.id, signal=15), wire.Empty)
    assert caught.value.code == "PROCESS_NOT_FOUND"


@pytest.mark.parametrize(("number", "scope"), [(0, 0), (65, 0), (-9, 0), (1 << 40, 0), (15, 2)])
def test_bad_signals_are_refused(connection: Connection, number: int, scope: int) -> None:
    _, started = connection.start("/bin/sleep", "30")
    with pytest.raises(AgentError) as caught:
        connection.ask(wire.Signal(id=started.id, signal=number, scope=scope), wire.Empty)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_a_group_kill_leaves_other_sessions_and_a_tree_kill_does_not(connection: Connection) -> None:
    marker = f"7{time.monotonic_ns() % 10**8}"
    script = f"setsid sleep {marker} & sleep {marker}"
    stream, started = connection.start("/bin/sh", "-c", script)
    sleeping = lambda pid: Path(f"/proc/{pid}/comm").read_text() == "sleep\n"  # noqa: E731 - setsid is done by then
    wait_until(lambda: sum(map(sleeping, pids_with(marker))) == 2)
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL), wire.Empty)
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.signal) == ("signaled", signal.SIGKILL)
    wait_until(lambda: len(pids_with(marker)) == 1)  # the rest of the group dies a moment after its leader
    os.kill(pids_with(marker)[0], signal.SIGKILL)

    stream, started = connection.start("/bin/sh", "-c", script)
    wait_until(lambda: len(pids_with(marker)) == 3)
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGTERM, scope=1), wire.Empty)
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.signal, exit.exit_code) == ("signaled", signal.SIGKILL, None)
    assert pids_with(marker) == []


def test_when_a_supervisor_is_killed_its_orphans_die(agent: Agent, connection: Connection) -> None:
    marker = f"8{time.monotonic_ns() % 10**8}"
    stream, _ = connection.start("/bin/sh", "-c", f"setsid sleep {marker} & sleep {marker}; true", user="root")
    wait_until(lambda: len(pids_with(marker)) == 3)
    main = min(pids_with(marker))
    supervisor = int(Path(f"/proc/{main}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert supervisor != agent.process.pid
    os.kill(supervisor, signal.SIGKILL)
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.signal) == ("signaled", signal.SIGKILL)
    wait_until(lambda: pids_with(marker) == [])
    assert connection.sh("echo fine").stdout == b"fine\n"


def test_no_zombie_is_left(agent: Agent, connection: Connection) -> None:
    for _ in range(10):
        connection.sh("(sleep 0.05 &) ; true")

    def children() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
            except OSError:
                continue
            if fields and fields[1] == str(agent.process.pid):
                found.append(fields[0])
        return found

    wait_until(lambda: len(children()) == 2)  # the file workers
    assert "Z" not in children()


def test_a_supervisor_closes_the_pipes_when_its_command_does(connection: Connection) -> None:
    stream, started = connection.start("/bin/sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 2")
    assert connection.output(stream)[0].exit_code == 2
    assert connection.processes()[started.id].status == "exited"


def test_killing_a_tree_is_answered_when_nothing_of_it_is_left(connection: Connection) -> None:
    marker = f"kill-tree-{os.getpid()}-{time.monotonic_ns()}"
    script = f"for i in $(seq 60); do (trap '' TERM; exec -a {marker} sleep 600) & done; wait"
    _, started = connection.start("/bin/bash", "-c", script, window=0)  # a controller that reads nothing
    wait_until(lambda: len(pids_with(marker)) >= 60)
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL, scope=1), wire.Empty)
    assert pids_with(marker) == []


def test_what_an_ended_process_left_behind_can_still_be_killed(connection: Connection) -> None:
    marker = f"left-behind-{os.getpid()}-{time.monotonic_ns()}"
    id = spawn(connection, f"bash -c 'exec -a {marker} sleep 600' & exit 0")
    wait_until(lambda: ended(connection, id) and pids_with(marker))
    connection.ask(wire.Signal(id=id, signal=signal.SIGKILL, scope=1), wire.Empty)
    wait_until(lambda: not pids_with(marker))
    wait_until(lambda: "PROCESS_NOT_FOUND" in _refusal(connection, id))


def _refusal(connection: Connection, id: int) -> str:
    try:
        connection.ask(wire.Signal(id=id, signal=signal.SIGKILL, scope=1), wire.Empty)
    except AgentError as error:
        return error.code
    return ""


def test_a_program_that_kills_its_supervisor_at_once_is_still_reported_as_killed(connection: Connection) -> None:
    for _ in range(30):
        result = connection.sh("kill -9 $PPID; sleep 600", user="root")
        assert (result.exit.status, result.exit.signal, result.exit.exit_code) == ("signaled", 9, None)


def test_a_foreground_process_cannot_be_taken_from_its_client(agent: Agent, connection: Connection) -> None:
    _, started = connection.start("/bin/sleep", "600", flags=FOREGROUND)
    other = agent.connect()
    with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
        attach(other, started.id)
    attach(other, started.id, flags=VIEW)


def test_input_of_many_controllers_that_nobody_reads_breaks_no_connection(connection: Connection) -> None:
    _, started = connection.start("/bin/sleep", "600", flags=STDIN)
    codes: list[str] = []
    for _ in range(8):
        stream = connection.open(wire.Attach(id=started.id))
        connection.reply(stream, wire.Attached, final=False)
        connection.data(stream, bytes(wire.INPUT_WINDOW))
        connection.send(0, Type.PING)
        assert connection.next(0).type == Type.PONG
        errors = [frame for frame in connection.waiting.get(stream, ()) if frame.type == Type.ERROR]
        codes.extend(wire.Failure.decode(frame.payload).code for frame in errors)
    assert codes
    assert set(codes) == {"QUOTA_EXCEEDED"}
    assert connection.sh("echo fine").stdout == b"fine\n"
