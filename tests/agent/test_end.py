"""The end of a sandbox: the time its processes get, and the words the agent leaves."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import StartFlags, Type
from tests.agent.conftest import build
from tests.agent.driver.client import Agent, AgentError, Closed, Connection, pids_with, wait_until

Make = Callable[..., Agent]
AGES = 60_000
FINISH = "sleep 0.3; echo finished > finished; exit 0"


def end(connection: Connection, **options: int) -> wire.LifeReply:
    return connection.ask(wire.Life(end=1, **options), wire.LifeReply)


def start(connection: Connection, script: str, flags: int = 0) -> int:
    """Runs it until it has said that it is ready."""
    stream, _ = connection.start("/bin/sh", "-c", script, flags=flags)
    said = b""
    while b"ready" not in said:
        frame = connection.next(stream)
        assert frame.type == Type.DATA, frame
        said += bytes(wire.parse_data(frame.payload)[1])
    return stream


def by_deadline(agent: Agent, connection: Connection) -> None:
    connection.ask(wire.Life(deadline_ms=50), wire.LifeReply)


def by_idleness(agent: Agent, connection: Connection) -> None:
    connection.ask(wire.Life(idle_ms=50), wire.LifeReply)


def by_request(agent: Agent, connection: Connection) -> None:
    end(connection)


def by_request_with_grace(agent: Agent, connection: Connection) -> None:
    end(connection, grace_ms=50)


def by_lease(agent: Agent, connection: Connection) -> None:
    connection.ask(wire.Life(lease=1), wire.LifeReply)
    connection.close()


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (by_deadline, "deadline"),
        (by_idleness, "idle"),
        (by_request, "end"),
        (by_request_with_grace, "end"),
        (by_lease, "lease"),
    ],
)
def test_each_end_leaves_its_reason_and_the_environment(
    make_agent: Make, root: Path, way: Callable[[Agent, Connection], None], reason: str
) -> None:
    agent = make_agent(words=root / "words", env=(b"GIVEN=1", b"GONE=1"))
    connection = agent.connect()
    told = connection.ask(wire.Env(set=(b"ADDED=\xffb=c", b"GIVEN=2"), unset=(b"GONE",)), wire.EnvReply)
    before = time.time_ns() // 10**6
    way(agent, connection)
    words = agent.last_words()
    assert agent.process.returncode == 0
    assert words is not None
    assert words.reason == reason
    assert words.env == told.env
    assert set(words.env) >= {b"ADDED=\xffb=c", b"GIVEN=2"}
    assert words.env_count == len(told.env)
    assert before <= words.at_ms <= time.time_ns() // 10**6


def test_an_agent_that_is_killed_leaves_no_words(binary: Path, root: Path) -> None:
    agent = Agent(binary, root, words=root / "words").start()
    agent.connect().close()
    agent.process.kill()
    assert agent.last_words() is None
    os.unlink(agent.address)


def test_the_largest_environment_is_told(make_agent: Make, root: Path) -> None:
    agent = make_agent(words=root / "words")
    connection = agent.connect()
    connection.ask(wire.Env(set=(b"LARGE=" + b"x" * 500_000,)), wire.EnvReply)
    end(connection)
    words = agent.last_words()
    assert words is not None
    assert b"LARGE=" + b"x" * 500_000 in words.env


@pytest.mark.parametrize(("limit", "kept"), [(65536, True), (8, False), (0, False)])
def test_without_room_for_the_environment_only_the_reason_is_told(
    make_agent: Make, root: Path, limit: int, kept: bool
) -> None:
    agent = make_agent(words=root / "words", prefix=["prlimit", f"--fsize={limit}"])
    connection = agent.connect()
    connection.ask(wire.Env(set=(b"LARGE=" + b"x" * 200_000,)), wire.EnvReply)
    end(connection)
    words = agent.last_words()
    assert agent.process.returncode == 0
    if not kept:
        assert words is None
        return
    assert words is not None
    assert (words.reason, words.env_count, words.env) == ("end", None, ())


def test_a_full_disk_changes_nothing_about_the_end(make_agent: Make) -> None:
    agent = make_agent(words=Path("/dev/full"))
    marker = f"3{time.monotonic_ns() % 10**8}"
    connection = agent.connect()
    connection.start("/bin/sleep", marker)
    end(connection)
    assert agent.process.wait(30) == 0
    assert pids_with(marker) == []


def test_no_process_gets_the_file_of_the_last_words(make_agent: Make, root: Path) -> None:
    agent = make_agent(words=root / "words")
    connection = agent.connect()
    _, started = connection.start("/bin/sleep", "1000", user="root")
    connection.stat(".")  # a file worker runs
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    assert len(children) >= 2
    wait_until(lambda: holders(root / "words", [*children, str(started.pid)]) == [])  # a fork first closes what is ours
    assert holders(root / "words", [str(agent.process.pid)])


def holders(file: Path, pids: list[str]) -> list[str]:
    """Those who have it open."""
    return [pid for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if os.path.realpath(fd) == str(file)]


def test_a_process_may_finish_in_its_grace(make_agent: Make, root: Path) -> None:
    agent = make_agent(words=root / "words")
    connection = agent.connect()
    stream = start(connection, f"trap '{FINISH}' TERM; echo ready; while :; do sleep 0.05; done")
    begin = time.monotonic()
    assert end(connection, grace_ms=AGES).remaining_ms == -1
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.exit_code) == ("exited", 0)
    with pytest.raises(Closed):
        connection.next(stream)
    words = agent.last_words()
    assert words is not None
    assert words.reason == "end"
    assert time.monotonic() - begin < AGES / 2000
    assert (Path(os.fsdecode(agent.workdir)) / "finished").exists()


@pytest.mark.parametrize(
    "script",
    [
        "sh -c '{}' & echo started; wait; exit",  # the child lives longer than its shell, in the same group
        "setsid sh -c '{}' & echo started; wait; exit",  # and in a group of its own
        "setsid sh -c '{}' & sleep 0.05",  # whose main process has ended before
    ],
)
def test_children_may_finish_in_their_grace(make_agent: Make, script: str) -> None:
    agent = make_agent()
    connection = agent.connect()
    child = f'trap "{FINISH}" TERM; echo ready > ready; while :; do sleep 0.05; done'
    stream, _ = connection.start("/bin/sh", "-c", script.format(child))
    work = Path(os.fsdecode(agent.workdir))
    wait_until((work / "ready").exists)
    if script.endswith("0.05"):
        connection.output(stream)
    end(connection, grace_ms=AGES)
    assert agent.process.wait(30) == 0
    assert (work / "finished").exists()


COUNT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
while signal.sigtimedwait([signal.SIGTERM], 0.5):
    print("again", flush=True)
"""


def test_a_process_is_asked_once(make_agent: Make) -> None:
    agent = make_agent(user="root")
    connection = agent.connect()
    stream = start(connection, f"exec {sys.executable} -c {shlex.quote(COUNT)}")
    end(connection, grace_ms=AGES)
    end(connection, grace_ms=AGES)
    exit, stdout, _ = connection.output(stream)
    assert (exit.exit_code, stdout) == (0, b"")
    assert agent.process.wait(30) == 0


def test_a_process_that_does_not_listen_dies_after_the_grace(make_agent: Make) -> None:
    agent = make_agent()
    connection = agent.connect()
    marker = f"2{time.monotonic_ns() % 10**8}"
    start(connection, f"trap '' TERM; echo ready; sleep {marker}; true")
    begin = time.monotonic()
    end(connection, grace_ms=600)
    with pytest.raises(AgentError, match="CONFLICT"):
        connection.run("/bin/true")
    assert agent.process.poll() is None
    assert agent.process.wait(30) == 0
    assert time.monotonic() - begin >= 0.6
    assert pids_with(marker) == []


def test_a_terminal_is_hung_up(make_agent: Make) -> None:
    agent = make_agent()
    connection = agent.connect()
    start(
        connection,
        f"trap '' TERM; trap '{FINISH}' HUP; echo ready; while :; do sleep 0.05; done",
        StartFlags.TERMINAL,
    )
    end(connection, grace_ms=AGES)
    assert agent.process.wait(30) == 0
    assert (Path(os.fsdecode(agent.workdir)) / "finished").exists()


def test_a_stopped_process_is_woken_to_end(make_agent: Make) -> None:
    agent = make_agent()
    connection = agent.connect()
    start(connection, f"trap '{FINISH}' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
    end(connection, grace_ms=AGES)
    assert agent.process.wait(30) == 0
    assert (Path(os.fsdecode(agent.workdir)) / "finished").exists()


@pytest.mark.parametrize("hurry", ["end", "deadline", "lease"])
def test_the_grace_can_be_cut_short(make_agent: Make, root: Path, hurry: str) -> None:
    agent = make_agent(words=root / "words")
    connection, other = agent.connect(), agent.connect()
    start(connection, "trap '' TERM; echo ready; sleep 1000; true")
    other.ask(wire.Life(lease=1), wire.LifeReply)
    end(connection, grace_ms=AGES)
    if hurry == "end":
        end(connection)
    elif hurry == "deadline":
        connection.ask(wire.Life(deadline_ms=10), wire.LifeReply)
    else:
        other.close()
    words = agent.last_words()
    assert words is not None
    assert words.reason == "end"


def test_a_grace_without_an_end_is_refused(agent: Agent) -> None:
    connection = agent.connect()
    for wrong in (wire.Life(grace_ms=5), wire.Life(end=1, grace_ms=-1)):
        with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
            connection.ask(wrong, wire.LifeReply)
    assert connection.sh("echo fine").stdout == b"fine\n"


def test_as_the_first_process_it_gives_grace_and_leaves_words(root: Path) -> None:
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with Agent(build("all"), root, prefix=prefix, words=root / "words") as agent:
        connection = agent.connect()
        start(connection, f"trap '{FINISH}' TERM; echo ready; while :; do sleep 0.05; done")
        end(connection, grace_ms=AGES)
        words = agent.last_words()
        assert words is not None
        assert words.reason == "end"
        assert (Path(os.fsdecode(agent.workdir)) / "finished").exists()
