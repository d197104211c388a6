"""Greeting, life, and clients that break the rules: only their own connection ends."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.conftest import SOURCE, build
from tests.agent.driver.client import TOKEN, Agent, AgentError, Closed, Connection, pids_with, wait_until


def frame(stream: int, type: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<IIBBH", len(payload), stream, type, flags, 0) + payload


START = wire.Start(argv=(b"/bin/cat",), flags=3).encode()


def test_the_greeting_tells_version_and_uptime(agent: Agent) -> None:
    connection = agent.connect(hello=False)
    time.sleep(0.02)
    connection.send(0, Type.HELLO, wire.Hello(generation=7, token=TOKEN))
    answer = wire.Hello.decode(connection.next(0).payload)
    assert (answer.generation, answer.token) == (wire.GENERATION, b"")
    assert answer.version
    assert 0 <= answer.uptime_ms < 60_000


def test_requests_may_follow_the_greeting_at_once(agent: Agent) -> None:
    connection = agent.connect(hello=False)
    hello = frame(0, Type.HELLO, wire.Hello(generation=1, token=TOKEN).encode())
    connection.raw(hello + frame(1, Type.LIFE) + frame(0, Type.PING, b"x" * 64))
    assert connection.next(0).type == Type.HELLO
    assert connection.reply(1, wire.LifeReply).remaining_ms == -1
    assert connection.next(0) == (0, Type.PONG, 0, b"x" * 64)


@pytest.mark.parametrize("token", [b"", b"wrong", TOKEN + b"x", TOKEN[:-1], TOKEN * 2, b"\0" * 1000])
def test_a_wrong_token_is_refused(agent: Agent, token: bytes) -> None:
    connection = agent.connect(hello=False)
    connection.send(0, Type.HELLO, wire.Hello(generation=1, token=token))
    assert connection.broken() == "UNAUTHENTICATED"


HOSTILE_FIRST = {
    "request before the greeting": frame(1, Type.START, START),
    "greeting on a stream": frame(1, Type.HELLO, wire.Hello(generation=1, token=TOKEN).encode()),
    "greeting without fields": frame(0, Type.HELLO),
    "garbage": b"GET / HTTP/1.1\r\nHost: sandbox\r\n\r\n",
    "huge length": struct.pack("<IIBBH", 0xFFFFFFFF, 0, 1, 0, 0),
}


@pytest.mark.parametrize("data", HOSTILE_FIRST.values(), ids=HOSTILE_FIRST.keys())
def test_a_connection_that_begins_badly_ends(agent: Agent, data: bytes) -> None:
    connection = agent.connect(hello=False)
    connection.raw(data)
    assert connection.broken() in ("UNAUTHENTICATED", "INVALID_ARGUMENT")


HOSTILE = {
    "length above the limit": struct.pack("<IIBBH", (1 << 20) + 1, 1, Type.READ, 0, 0),
    "length of a command above the limit": struct.pack("<IIBBH", wire.MAX_START + 1, 1, Type.START, 0, 0),
    "second greeting": frame(0, Type.HELLO, wire.Hello(generation=1, token=TOKEN).encode()),
    "boot": frame(0, Type.BOOT, wire.Boot(token=TOKEN).encode()),
    "last words": frame(0, Type.WORDS, wire.LastWords(reason="end", at_ms=1).encode()),
    "opener on stream 0": frame(0, Type.START, START),
    "opener on a used id": frame(5, Type.LIFE) + frame(5, Type.LIFE),
    "opener below an earlier one": frame(5, Type.LIFE) + frame(4, Type.LIFE),
    "opener on an open stream": frame(1, Type.START, START) + frame(1, Type.START, START),
    "data on a stream never opened": frame(9, Type.DATA, b"\0" * 8),
    "data on stream 0": frame(0, Type.DATA, b"\0" * 8),
    "reply": frame(0, Type.REPLY),
    "error": frame(1, Type.ERROR),
    "unknown type below the openers": frame(1, 0x0C),
    "ping on a stream": frame(1, Type.PING),
    "ping too long": frame(0, Type.PING, b"x" * 65),
    "data without an offset": frame(1, Type.START, START) + frame(1, Type.DATA, b"1234567"),
    "data on stdout": frame(1, Type.START, START) + frame(1, Type.DATA, b"\0" * 9, flags=1),
    "data after the end": frame(1, Type.START, START)
    + frame(1, Type.DATA, b"\0" * 8, flags=0x80)
    + frame(1, 5, b"\0" * 9),
    "data beyond the credit": frame(1, Type.START, wire.Start(argv=(b"/bin/sleep", b"9"), flags=3).encode())
    + frame(1, Type.DATA, b"\0" * (8 + wire.INPUT_WINDOW))
    + frame(1, Type.DATA, b"\0" * (8 + wire.INPUT_WINDOW)),
    "credit of 3 bytes": frame(1, Type.START, START) + frame(1, Type.CREDIT, b"123"),
    "field cut off": frame(1, Type.START, b"\x01\xff\xff\x00\x00abc"),
    "field head cut off": frame(1, Type.SIGNAL, b"\x01\x08"),
    "integer of 4 bytes": frame(1, Type.SIGNAL, b"\x01\x04\0\0\0abcd"),
    "integer of 4 bytes in a file request": frame(1, Type.READ, b"\x01\x01\0\0\0/\x03\x04\0\0\0abcd"),
    "field cut off in a file request": frame(1, Type.STAT, b"\x01\xff\xff\xff\xff/"),
    "data for a read": frame(1, Type.READ, wire.Read(path=b"/dev/../etc/passwd", window=0).encode())
    + frame(1, Type.DATA, b"\0" * 9),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_client_that_breaks_the_protocol_ends_only_itself(agent: Agent, connection: Connection, data: bytes) -> None:
    hostile = agent.connect()
    hostile.raw(data)
    assert hostile.broken() == "INVALID_ARGUMENT"
    assert connection.sh("echo fine").stdout == b"fine\n"
    wait_until(lambda: connection.processes() == {})


def test_random_bytes_never_stop_the_agent(agent: Agent, connection: Connection) -> None:
    chance = random.Random(20)
    for _ in range(150):
        hostile = agent.connect()
        try:
            for _ in range(30):
                payload = chance.randbytes(chance.choice((0, 4, 8, 13, 60, 300)))
                kind = chance.choice((*Type, chance.randrange(256)))
                hostile.raw(frame(chance.randrange(40), kind, payload, chance.choice((0, 1, 2, 0x80))))
            if chance.random() < 0.5:
                hostile.raw(chance.randbytes(chance.randrange(2000)))
        except (BrokenPipeError, ConnectionResetError):
            pass
        hostile.close()
    assert connection.sh("echo fine").stdout == b"fine\n"


def test_random_fields_in_every_request_never_stop_the_agent(agent: Agent, connection: Connection) -> None:
    chance = random.Random(21)
    values = [
        b"",
        b"/",
        b"x",
        b".",
        b"..",
        b"a\0b",
        b"K=V",
        struct.pack("<q", 0),
        struct.pack("<q", 1),
        struct.pack("<q", -1),
    ]
    values += [struct.pack("<q", 1 << 62), struct.pack("<q", -(1 << 63)), b"\xff" * 300, b"user", b"nobody"]
    openers = [kind for kind in Type if kind >= 0x10 and kind not in (Type.LIFE, Type.REMOVE)]
    for _ in range(60):
        hostile = agent.connect()
        try:
            for stream in range(1, 40):
                tags = [chance.randrange(12) for _ in range(chance.randrange(6))]
                payload = b"".join(wire.encode_field(tag, chance.choice(values)) for tag in tags)
                hostile.raw(frame(stream, chance.choice(openers), payload))
                if chance.random() < 0.3:
                    hostile.raw(frame(stream, Type.CLOSE))
        except (BrokenPipeError, ConnectionResetError):
            pass
        hostile.close()
    assert connection.sh("echo fine").stdout == b"fine\n"


@pytest.mark.parametrize("kind", [0x17, 0x2C, 0x33, 0x45, 0x62, 0xFF])
def test_an_unknown_request_is_unsupported_and_the_connection_goes_on(connection: Connection, kind: int) -> None:
    connection.raw(frame(1, kind, b"anything"))
    connection.last = 1
    with pytest.raises(AgentError) as caught:
        connection.reply(1, wire.Empty)
    assert caught.value.code == "UNSUPPORTED"
    connection.data(1, b"in flight")
    assert connection.sh("echo fine").stdout == b"fine\n"


def test_unknown_fields_are_skipped(connection: Connection) -> None:
    payload = wire.Start(argv=(b"/bin/echo", b"x"), flags=1).encode() + wire.encode_field(200, b"news")
    connection.raw(frame(1, Type.START, payload))
    connection.reply(1, wire.Started, final=False)
    assert connection.output(1)[1] == b"x\n"


def test_a_frame_may_come_byte_by_byte(connection: Connection) -> None:
    for byte in frame(1, Type.START, wire.Start(argv=(b"/bin/echo", b"x"), flags=1).encode()):
        connection.raw(bytes([byte]))
        time.sleep(0.0002)
    connection.reply(1, wire.Started, final=False)
    assert connection.output(1)[1] == b"x\n"


def test_a_client_that_does_not_read_is_not_served_without_bound(agent: Agent) -> None:
    lazy = agent.connect()
    lazy.socket.settimeout(0.3)
    ping = frame(0, Type.PING, b"x" * 64) * 1000
    before, sent = agent.rss_kb(), 0
    try:
        while sent < 100_000_000:
            sent += lazy.socket.send(ping)
    except TimeoutError:
        pass
    assert sent < 50_000_000
    assert agent.rss_kb() - before < 20_000
    assert agent.connect().sh("echo fine").stdout == b"fine\n"
    while lazy.next(0).payload == b"x" * 64 and lazy.decoder.pending == 0:  # and it goes on when it does
        break


def test_no_more_than_256_connections(agent: Agent) -> None:
    for _ in range(256):
        agent.connect()
    refused = agent.connect(hello=False)
    with pytest.raises((Closed, BrokenPipeError)):
        refused.next(0)
    agent.connections[0].close()
    wait_until(lambda: works(agent))


def works(agent: Agent) -> bool:
    try:
        return agent.connect().sh("echo fine").stdout == b"fine\n"
    except (Closed, BrokenPipeError):
        return False


def test_the_deadline_of_boot_ends_the_agent(make_agent: Callable[..., Agent]) -> None:
    begin = time.monotonic()
    agent = make_agent(deadline_ms=1500)
    marker = f"9{time.monotonic_ns() % 10**8}"
    connection = agent.connect()
    connection.start("/bin/sh", "-c", f"setsid sleep {marker} & sleep {marker}")
    assert 0 < connection.ask(wire.Life(), wire.LifeReply).remaining_ms <= 1500
    assert agent.process.wait(20) == 0
    assert time.monotonic() - begin > 1.4
    assert pids_with(marker) == []


def test_the_deadline_can_be_moved_and_lifted(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(deadline_ms=500)
    connection = agent.connect()
    answer = connection.ask(wire.Life(deadline_ms=60_000), wire.LifeReply)
    assert 59_000 < answer.remaining_ms <= 60_000
    assert 0 <= answer.uptime_ms < 10_000
    assert connection.ask(wire.Life(deadline_ms=-1), wire.LifeReply).remaining_ms == -1
    time.sleep(0.7)
    assert connection.sh("echo fine").stdout == b"fine\n"
    with pytest.raises(AgentError):
        connection.ask(wire.Life(deadline_ms=-2), wire.LifeReply)
    connection.ask(wire.Life(deadline_ms=100), wire.LifeReply)
    assert agent.process.wait(10) == 0


def test_the_agent_ends_with_the_connection_that_leases_it(agent: Agent) -> None:
    marker = f"6{time.monotonic_ns() % 10**8}"
    first, second = agent.connect(), agent.connect()
    assert first.ask(wire.Life(lease=1), wire.LifeReply).leased == 1
    assert second.ask(wire.Life(), wire.LifeReply).leased == 1
    assert first.ask(wire.Life(lease=0), wire.LifeReply).leased == 0
    first.close()
    second.start("/bin/sleep", marker)
    second.ask(wire.Life(lease=1), wire.LifeReply)
    second.close()
    assert agent.process.wait(10) == 0
    assert pids_with(marker) == []


def test_end_is_answered_and_then_done(agent: Agent) -> None:
    connection = agent.connect()
    connection.start("/bin/sleep", "1234.5")
    assert connection.ask(wire.Life(end=1), wire.LifeReply).remaining_ms == -1
    assert agent.process.wait(10) == 0
    assert pids_with("1234.5") == []


def test_when_the_agent_is_killed_its_trees_die(agent: Agent) -> None:
    marker = f"5{time.monotonic_ns() % 10**8}"
    agent.connect().start("/bin/sh", "-c", f"setsid sleep {marker} & sleep {marker}")
    wait_until(lambda: len(pids_with(marker)) == 3)
    agent.process.terminate()
    wait_until(lambda: pids_with(marker) == [])


def test_stats_count_disk_and_processes(connection: Connection) -> None:
    stats = connection.ask(wire.Stats(), wire.StatsReply)
    assert stats.disk_total > stats.disk_used > 0
    assert stats.processes >= 3
    assert stats.net_rx >= 0
    assert stats.net_tx >= 0


def test_an_idle_agent_is_small(root: Path) -> None:
    with Agent(build("all"), root) as agent:
        connection = agent.connect()
        connection.write("file", b"x" * 3_000_000)
        connection.read("file")
        for _ in range(20):
            connection.sh("head -c 300000 /dev/zero")
        time.sleep(0.2)
        rollup = Path(f"/proc/{agent.process.pid}/smaps_rollup").read_text()
        anonymous = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:"))
        assert anonymous < 150


@pytest.mark.parametrize(
    "arguments", [[], ["x", "y"], ["0", "1"], ["99", "98"], ["1", "2", "3", "4"], ["3", "4", "-", "5", "6"]]
)
def test_a_bad_start_is_refused(binary: Path, arguments: list[str]) -> None:
    done = subprocess.run([binary, *arguments], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"agent" in done.stderr


def test_it_says_its_version(binary: Path) -> None:
    assert subprocess.run([binary, "--version"], capture_output=True, check=True).stdout.startswith(b"skerry-agent ")


def test_the_decoder_survives_fuzzing(tmp_path: Path) -> None:
    seconds = os.environ.get("FUZZ_SECONDS", "3")
    options = [f"-max_total_time={seconds}", "-max_len=4096", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([build("fuzz"), *options, tmp_path, SOURCE / "fuzz/corpus"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


def test_the_build_is_reproducible(tmp_path: Path) -> None:
    built = build("all").read_bytes()
    copy = shutil.copytree(SOURCE, tmp_path / "agent", ignore=shutil.ignore_patterns("build"))
    subprocess.run(["make", "-s", "-j4", "-C", copy], check=True)
    assert (copy / "build/agent").read_bytes() == built
