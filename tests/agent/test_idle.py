"""Inactivity: work postpones the end of a sandbox, and looking at it does not."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import AttachFlags, StartFlags, Type
from tests.agent.conftest import build
from tests.agent.driver.client import Agent, AgentError, Connection, pids_with, status, wait_until

Make = Callable[..., Agent]
IDLE = 400
LONG = 3 * IDLE / 1000
NEVER_REACHED = 600_000


def life(connection: Connection) -> wire.LifeReply:
    return connection.ask(wire.Life(), wire.LifeReply)


def background(connection: Connection, script: str, flags: int = 0) -> wire.Started:
    """Starts it and lets go of it."""
    stream, started = connection.start("/bin/sh", "-c", script, flags=flags)
    connection.send(stream, Type.CLOSE)
    return started


def assert_stays(agent: Agent, connection: Connection) -> None:
    time.sleep(LONG)
    assert agent.process.poll() is None
    assert life(connection).idle_for_ms == 0


def test_an_agent_that_does_nothing_ends_and_takes_all_with_it(make_agent: Make, root: Path) -> None:
    marker = f"7{time.monotonic_ns() % 10**8}"
    begin = time.monotonic()
    agent = make_agent(idle_ms=IDLE, words=root / "words")
    background(agent.connect(), f"setsid sleep {marker} & sleep {marker}")
    words = agent.last_words()
    assert words is not None
    assert words.reason == "idle"
    assert agent.process.returncode == 0
    assert time.monotonic() - begin >= IDLE / 1000
    assert pids_with(marker) == []


def test_without_a_limit_it_neither_ends_nor_wakes_up(agent: Agent) -> None:
    def switches() -> int:
        return int(status(agent.process.pid)["voluntary_ctxt_switches"])

    answer = life(agent.connect())
    assert (answer.idle_ms, answer.idle_for_ms) == (-1, 0)
    time.sleep(0.3)
    before = switches()
    time.sleep(0.6)
    assert switches() == before


def test_work_is_noted_for_the_host_and_rest_is_not(make_agent: Make, root: Path) -> None:
    file = root / "words"
    agent = make_agent(words=file)
    connection = agent.connect()
    life(connection)
    connection.ask(wire.Env(), wire.EnvReply)
    time.sleep(1.3)
    assert file.read_bytes() == b""  # nothing was done
    stream, _ = connection.start("/bin/sleep", "1000", flags=StartFlags.FOREGROUND)
    wait_until(lambda: file.read_bytes())
    note = wire.parse_note(file.read_bytes())
    assert note is not None
    assert note.reason == "at_work"
    ended = time.time()
    connection.send(stream, Type.CLOSE)
    wait_until(lambda: b"at_rest" in file.read_bytes())
    note = wire.parse_note(file.read_bytes())
    assert note is not None
    assert abs(note.at_ms / 1000 - ended) < 1
    assert wire.parse_last_words(file.read_bytes()) is None
    connection.ask(wire.Life(end=1), wire.LifeReply)
    words = agent.last_words()
    assert words is not None
    assert words.reason == "end"


def test_a_foreground_command_that_sleeps_is_work(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    stream, _ = connection.start("/bin/sleep", "1000", flags=StartFlags.FOREGROUND)
    assert_stays(agent, connection)
    connection.send(stream, Type.CLOSE)
    assert agent.process.wait(30) == 0


def test_an_attached_terminal_is_work(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    started = background(connection, "sleep 1000", StartFlags.TERMINAL)
    attached = connection.open(wire.Attach(id=started.id))
    assert_stays(agent, connection)
    connection.send(attached, Type.CLOSE)
    assert agent.process.wait(30) == 0


def test_a_background_process_that_computes_is_work(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    started = background(connection, "exec sh -c 'while :; do :; done'")
    time.sleep(LONG)
    assert agent.process.poll() is None
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL), wire.Empty)
    assert agent.process.wait(30) == 0


def test_short_lived_processes_count_for_their_parents(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    started = background(connection, "while :; do /bin/true; done")
    time.sleep(LONG)
    assert agent.process.poll() is None
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL), wire.Empty)
    assert agent.process.wait(30) == 0


def test_a_connection_to_a_port_is_work(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        stream = connection.open(wire.Dial(port=server.getsockname()[1]))
        connection.reply(stream, wire.Dialled, final=False)
        assert_stays(agent, connection)
        connection.send(stream, Type.CLOSE)
        assert agent.process.wait(30) == 0


def test_a_file_request_is_work_while_it_is_served(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    stream = connection.open(wire.Write(path=b"slow"))
    connection.data(stream, b"some")
    assert_stays(agent, connection)
    connection.send(stream, Type.CLOSE)
    assert agent.process.wait(30) == 0


def test_polling_viewing_and_watching_postpone_nothing(make_agent: Make) -> None:
    agent = make_agent(idle_ms=IDLE)
    connection = agent.connect()
    started = background(connection, "sleep 1000")
    connection.socket.settimeout(0.02)
    connection.open(wire.Attach(id=started.id, flags=AttachFlags.VIEW))
    connection.open(wire.Watch(path=b"."))
    polls = (wire.Processes(), wire.Life(), wire.Stats(), wire.Ports(), wire.Env(), wire.Stat(path=b"."))
    end = time.monotonic() + 30
    while agent.process.poll() is None:
        assert time.monotonic() < end, "it is kept alive by polling"
        try:
            connection.send(0, Type.PING, b"there?")
            for poll in polls:
                connection.open(poll)
            connection.pump()
        except TimeoutError:
            pass
        except Exception:
            if agent.process.wait(30) != 0:
                raise


def requests(started: wire.Started) -> dict[str, tuple[bool, wire.Message]]:
    """Each with whether it is work."""
    return {
        "signal": (True, wire.Signal(id=started.id, signal=signal.SIGCONT)),
        "resize": (True, wire.Resize(id=started.id, cols=90, rows=30)),
        "env": (True, wire.Env(set=(b"A=1",))),
        "mkdir": (True, wire.MkDir(path=os.urandom(8).hex().encode())),
        "list": (True, wire.ListDir(path=b".")),
        "start": (True, wire.Start(argv=(b"/bin/true",), flags=StartFlags.FOREGROUND)),
        "signal to nobody": (False, wire.Signal(id=99, signal=signal.SIGCONT)),
        "dial to a closed port": (False, wire.Dial(port=1)),
        "env as it is": (False, wire.Env()),
        "life": (False, wire.Life()),
        "processes": (False, wire.Processes()),
        "stats": (False, wire.Stats()),
        "ports": (False, wire.Ports()),
        "stat": (False, wire.Stat(path=b".")),
    }


def test_requests_that_work_and_requests_that_look(make_agent: Make) -> None:
    connection = make_agent(idle_ms=NEVER_REACHED).connect()
    started = background(connection, "sleep 1000", StartFlags.TERMINAL)

    def resets(request: wire.Message) -> bool:
        wait_until(lambda: life(connection).idle_for_ms >= 30)
        before, begin = life(connection).idle_for_ms, time.monotonic()
        stream = connection.open(request)
        while True:
            frame = connection.next(stream)
            if frame.type == Type.ERROR or (frame.type == Type.REPLY and frame.flags & wire.FINAL):
                break
        after = life(connection).idle_for_ms
        reset = after <= (time.monotonic() - begin) * 1000 + 1
        assert reset or after >= before
        return reset

    for name, (works, request) in requests(started).items():
        # A look at the CPU time may fall between; not each time.
        assert any(resets(request) == works for _ in range(1 if works else 3)), name


def test_the_limit_can_be_set_changed_and_lifted(agent: Agent) -> None:
    connection = agent.connect()
    answer = connection.ask(wire.Life(idle_ms=NEVER_REACHED), wire.LifeReply)
    assert answer.idle_ms == NEVER_REACHED
    wait_until(lambda: life(connection).idle_for_ms >= 50)
    answer = connection.ask(wire.Life(idle_ms=-1), wire.LifeReply)
    assert (answer.idle_ms, answer.idle_for_ms) == (-1, 0)
    for wrong in (0, -2):
        with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
            connection.ask(wire.Life(idle_ms=wrong), wire.LifeReply)
    assert life(connection).idle_ms == -1
    connection.ask(wire.Life(idle_ms=2**62), wire.LifeReply)
    connection.ask(wire.Life(idle_ms=100), wire.LifeReply)
    assert agent.process.wait(30) == 0


def test_time_in_which_the_sandbox_is_frozen_does_not_count(make_agent: Make) -> None:
    agent = make_agent(idle_ms=1200)
    connection = agent.connect()
    life(connection)
    agent.process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    thawed = time.monotonic()
    agent.process.send_signal(signal.SIGCONT)
    assert agent.process.wait(30) == 0
    assert time.monotonic() - thawed > 0.3


def test_as_the_first_process_it_ends_too(root: Path) -> None:
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with Agent(build("all"), root, prefix=prefix, idle_ms=IDLE, words=root / "words") as agent:
        marker = f"8{time.monotonic_ns() % 10**8}"
        background(agent.connect(), f"setsid sleep {marker} & sleep {marker}")
        words = agent.last_words()
        assert words is not None
        assert words.reason == "idle"
        wait_until(lambda: pids_with(marker) == [])
