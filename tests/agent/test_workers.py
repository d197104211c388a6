"""File workers that are stopped, killed or hang: whoever waits is answered, the others go on, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import wire
from tests.agent.conftest import build
from tests.agent.driver.client import Agent, AgentError, Connection, let_go, state, status, trace, wait_until

INFO = wire.FileInfoMessage


def test_a_worker_that_is_stopped_goes_on(agent: Agent, connection: Connection) -> None:
    connection.stat("/")
    for pid in agent.children():
        os.kill(pid, signal.SIGSTOP)
    assert connection.stat("/").type_name == "dir"


def test_signals_that_can_be_caught_do_nothing_to_a_worker(agent: Agent, connection: Connection) -> None:
    connection.stat("/")
    workers = agent.children()
    for pid in workers:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGXFSZ):
            os.kill(pid, number)
    assert connection.stat("/").type_name == "dir"
    assert agent.children() == workers


def test_what_a_killed_worker_has_not_begun_is_done_by_the_next(
    agent: Agent, connection: Connection, work: Path
) -> None:
    connection.stat("/")
    begun = connection.open(wire.Write(path=b"begun"))
    connection.data(begun, b"half")
    wait_until(lambda: any(work.iterdir()))
    before, workers = agent.descriptors(), agent.children()
    for pid in workers:
        trace(pid)
    stats = [connection.open(wire.Stat(path=b"/")) for _ in range(50)]
    write = connection.open(wire.Write(path=b"whole"))
    content = os.urandom(wire.INPUT_WINDOW)
    connection.data(write, content)
    connection.data(write, b"", offset=len(content), end=True)
    missing = connection.open(wire.Stat(path=b"missing"))
    connection.send(0, wire.Type.PING, b"all is there")
    assert connection.next(0).type == wire.Type.PONG
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # as its tracer: only then its parent hears of it
    with pytest.raises(AgentError, match="IO_ERROR"):
        connection.reply(begun, INFO)
    assert [connection.reply(stream, INFO).type_name for stream in stats] == ["dir"] * 50
    assert connection.reply(write, INFO).size == len(content)
    assert (work / "whole").read_bytes() == content
    with pytest.raises(AgentError, match="FILE_NOT_FOUND"):
        connection.reply(missing, INFO)
    assert agent.descriptors() <= before
    assert len(agent.children()) <= 2


def test_streams_that_get_nothing_leave_credit_to_the_others(agent: Agent, connection: Connection) -> None:
    connection.write("file", b"x" * 1_000_000)
    users = [pid for pid in agent.children() if status(pid)["Uid"].split()[3] == "1000"]
    assert len(users) == 1
    trace(users[0])
    try:
        for _ in range(4):
            connection.open(wire.Read(path=b"file", window=1 << 30))
        assert connection.read("file", user="root")[1] == b"x" * 1_000_000
    finally:
        let_go(users[0])


def test_a_removal_that_is_killed_is_an_error(agent: Agent, connection: Connection, work: Path) -> None:
    connection.stat("/")
    (work / "tree").mkdir()
    for number in range(8000):
        (work / f"tree/{number}").touch()
    os.chown(work / "tree", 1000, 1000)
    workers = agent.children()
    stream = connection.open(wire.Remove(path=b"tree", flags=1))
    found: list[int] = []
    while not found:  # without a pause: it does not take long
        for worker in workers:
            found += map(int, Path(f"/proc/{worker}/task/{worker}/children").read_text().split())
    os.kill(found[0], signal.SIGKILL)
    with pytest.raises(AgentError, match="IO_ERROR"):
        connection.reply(stream, wire.Count)
    assert connection.ask(wire.Remove(path=b"tree", flags=1), wire.Count).count > 0


@pytest.fixture
def hasty(root: Path) -> Iterator[Agent]:
    home = root / "hasty"
    home.mkdir()
    with Agent(build("hasty"), home) as agent:
        yield agent


@pytest.fixture
def hung(root: Path) -> Iterator[Path]:
    """A file system that never answers."""
    path = root / "hung"
    path.mkdir()
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
    mount = ["mount", "-i", "-t", "fuse", "-o", options, "nobody", str(path)]
    if subprocess.run(mount, pass_fds=[fuse], capture_output=True, check=False).returncode:
        os.close(fuse)
        pytest.skip("FUSE cannot be mounted here")
    yield path
    os.close(fuse)
    subprocess.run(["umount", "-l", path], check=True)


def test_a_file_system_that_hangs_holds_back_nobody_else(hasty: Agent, hung: Path) -> None:
    connection = hasty.connect()
    work = Path(os.fsdecode(hasty.workdir))
    connection.stat("/")
    before = hasty.descriptors()
    began = time.monotonic()
    stuck = connection.open(wire.Stat(path=os.fsencode(hung / "file")))
    stats = [connection.open(wire.Stat(path=b"/")) for _ in range(20)]
    write = connection.open(wire.Write(path=b"whole"))
    connection.data(write, b"content", end=True)
    with pytest.raises(AgentError, match="IO_ERROR"):
        connection.reply(stuck, INFO)
    assert [connection.reply(stream, INFO).type_name for stream in stats] == ["dir"] * 20
    assert connection.reply(write, INFO).size == 7
    assert (work / "whole").read_bytes() == b"content"
    assert 1 < time.monotonic() - began < 20
    wait_until(lambda: hasty.descriptors() <= before)


def test_a_worker_that_takes_nothing_is_replaced(hasty: Agent) -> None:
    connection = hasty.connect()
    connection.stat("/")
    held = hasty.children()
    for pid in held:
        trace(pid)
    assert connection.stat("/").type_name == "dir"
    for pid in held:
        if state(pid)[0] == "t":
            let_go(pid)


def test_a_job_that_waits_for_its_client_does_not_hang(hasty: Agent) -> None:
    connection = hasty.connect()
    connection.write("file", b"x" * 100_000)
    stream = connection.open(wire.Read(path=b"file", window=1000))
    connection.reply(stream, INFO, final=False)
    time.sleep(4)
    connection.credit(stream, 0, 1 << 20)
    got = 0
    while (frame := connection.next(stream)).type == wire.Type.DATA:
        got += len(wire.parse_data(frame.payload)[1])
    assert got == 100_000
