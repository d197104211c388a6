"""Attacks on the machine's resolvers through the forwarder of names: it passes plain queries on, and nothing else."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from skerry import Sandbox
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import binary

RESOLVER = """
import socket, subprocess, sys, threading
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
def answer(query):
    return query[:2] + bytes([query[2] | 0x80]) + query[3:]
def stream(connection):
    while data := connection.recv(65536):
        print("tcp", data.hex(), flush=True)
        connection.sendall(data[:2] + answer(data[2:]))
def streams():
    while True:
        threading.Thread(target=stream, args=(server.accept()[0],), daemon=True).start()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
datagrams.bind(("127.0.0.1", 53))
server = socket.create_server(("127.0.0.1", 53))
threading.Thread(target=streams, daemon=True).start()
print("up", flush=True)
while True:
    data, client = datagrams.recvfrom(65536)
    print("udp", data.hex(), flush=True)
    datagrams.sendto(answer(data), client)
"""

ASK = """
import socket, sys
data, parts = bytes.fromhex(sys.argv[2]), int(sys.argv[3])
kind = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}[sys.argv[1]]
s = socket.socket(socket.AF_INET, kind)
s.settimeout(5)
s.connect(("127.0.0.53", 53))
for at in range(0, len(data), -(-len(data) // parts)):
    s.sendall(data[at:at + -(-len(data) // parts)])
heard, answers = b"", 0
try:
    while answers < int(sys.argv[4]) and (more := s.recv(65536)):
        heard += more
        answers, rest = 0, heard
        while len(rest) > 1 and len(rest) >= (size := 2 + int.from_bytes(rest[:2], "big") if kind == socket.SOCK_STREAM else 1):
            answers, rest = answers + 1, rest[size:]
except (TimeoutError, ConnectionError):
    pass
print(heard.hex())
"""


def message(
    name: str,
    *,
    kind: int = 1,
    group: int = 1,
    flags: int = 0x0100,
    counts: tuple[int, ...] = (1, 0, 0, 0),
    rest: bytes = b"",
) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 0xABCD, flags, *counts) + labels + b"\0" + struct.pack(">2H", kind, group) + rest


EDNS = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 4) + b"\0\x0a\0\0"
KEYED = b"\0" + struct.pack(">HHIH", 250, 255, 0, 0)
RECORD = b"\xc0\x0c" + struct.pack(">HHIH", 6, 1, 0, 0)

PLAIN = {
    "addresses": message("example.com"),
    "addresses of IPv6": message("example.com", kind=28),
    "any record": message("example.com", kind=255),
    "certificates allowed": message("example.com", kind=257),
    "the root": message("", kind=2)[:12] + b"\0" + struct.pack(">2H", 2, 1),
    "with options": message("example.com", counts=(1, 0, 0, 1), rest=EDNS),
}
OTHERS = {
    "an update": message("corp.example", kind=6, flags=0x2800),
    "an update with a record": message("corp.example", kind=6, flags=0x2800, counts=(1, 0, 1, 0), rest=RECORD),
    "a notification": message("corp.example", kind=6, flags=0x2000),
    "a status": message("corp.example", flags=0x1000),
    "a transfer": message("corp.example", kind=252),
    "a transfer of changes": message("corp.example", kind=251, counts=(1, 0, 1, 0), rest=RECORD),
    "a transfer of changes without a record": message("corp.example", kind=251),
    "a key": message("corp.example", kind=249),
    "the resolver's version": message("version.bind", kind=16, group=3),
    "two questions": message("a.example", counts=(2, 0, 0, 0), rest=message("b.example")[12:]),
    "no question": message("a.example", counts=(0, 0, 0, 0)),
    "a signed query": message("a.example", counts=(1, 0, 0, 1), rest=KEYED),
    "options and a signature": message("a.example", counts=(1, 0, 0, 2), rest=EDNS + KEYED),
    "an answer in the query": message("a.example", counts=(1, 1, 0, 0), rest=RECORD),
    "bytes behind the question": message("a.example", rest=b"GET / HTTP/1.0\r\n\r\n"),
    "options cut short": message("a.example", counts=(1, 0, 0, 1), rest=EDNS[:-1]),
    "a name that points elsewhere": struct.pack(">6H", 0xABCD, 0x100, 1, 0, 0, 0)
    + b"\xc0\x0c"
    + struct.pack(">2H", 1, 1),
    "a name without an end": struct.pack(">6H", 0xABCD, 0x100, 1, 0, 0, 0) + b"\x3fabc",
}


@dataclass
class Resolver:
    """One of the machine's resolvers, as the forwarder of `sandbox` sees it."""

    sandbox: Sandbox
    process: subprocess.Popen[str]

    def ask(self, how: str, data: bytes, *, user: str = "user", parts: int = 1, answers: int = 1) -> bytes:
        """What the sandbox hears; nothing if the connection is closed."""
        asked = ["python3", "-c", ASK, how, data.hex(), str(parts), str(answers)]
        done = self.sandbox.exec(asked, user=user, timeout=30, check=True)
        return bytes.fromhex(done.stdout.strip())

    def heard(self) -> list[str]:
        """All that arrived, up to a query that is sent now."""
        last = message("the.last.one")
        end = time.monotonic() + 20
        while self.ask("udp", last)[:3] != last[:2] + b"\x81":  # behind a flood it may have to be asked again
            assert time.monotonic() < end
        assert self.process.stdout is not None
        lines = list(iter(self.process.stdout.readline, f"udp {last.hex()}\n"))
        return [line.strip() for line in lines]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    with (
        Sandbox.create(timeout=300) as sandbox,
        subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", RESOLVER], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            first = Engine().lookup.running(sandbox.id).init
            assert first is not None
            forwarder = [binary("dns"), f"pid={first.pid}", "server=127.0.0.1"]
            subprocess.run(["nsenter", f"--net=/proc/{process.pid}/ns/net", *forwarder], check=True, timeout=60)
            yield Resolver(sandbox, process)
        finally:
            process.kill()


def framed(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def test_plain_queries_are_answered(resolver: Resolver) -> None:
    for data in PLAIN.values():
        wanted = data[:2] + bytes([data[2] | 0x80]) + data[3:]
        assert resolver.ask("udp", data) == wanted
        for parts in (1, 2, len(data)):
            assert resolver.ask("tcp", framed(data), parts=parts) == framed(wanted)
        assert resolver.heard() == [f"udp {data.hex()}", *[f"tcp {framed(data).hex()}"] * 3]


def test_nothing_but_plain_queries_reaches_a_resolver(resolver: Resolver, attacker: str) -> None:
    for what, data in OTHERS.items():
        answer = resolver.ask("udp", data, user=attacker)
        assert answer[:2] == data[:2] and answer[3] & 0xF == 5, what  # refused
        answer = resolver.ask("tcp", framed(data), user=attacker)
        assert answer[2:4] == data[:2] and answer[5] & 0xF == 5, what
    assert resolver.heard() == []


def test_what_is_not_the_protocol_reaches_no_resolver(resolver: Resolver, attacker: str) -> None:
    for data in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0\0",
        b"\0\x05hello",
        framed(b"x" * 11),
        framed(bytes(5000)),
        b"\x10\x01" + bytes(5000),
    ):
        assert resolver.ask("tcp", data, user=attacker) == b"", data[:20]
    answer = message("a.example", flags=0x8180)
    assert resolver.ask("udp", answer, user=attacker) == b""
    assert resolver.heard() == []


def test_a_query_behind_a_refused_one_is_answered(resolver: Resolver) -> None:
    transfer, plain = OTHERS["a transfer"], PLAIN["addresses"]
    resolver.ask("tcp", framed(transfer) + framed(plain), answers=2)
    assert resolver.heard() == [f"tcp {framed(plain).hex()}"]
    resolver.ask("tcp", framed(plain) + framed(transfer), answers=2)
    assert resolver.heard() == [f"tcp {framed(plain).hex()}"]


def test_a_flood_of_queries_is_slowed(resolver: Resolver) -> None:
    """Each takes a place in the machine's table of connections."""
    flood = (
        "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.53', 53))\n"
        "for _ in range(20000): s.send(bytes.fromhex(sys.argv[1]))"
    )
    start = time.monotonic()
    resolver.sandbox.exec(["python3", "-c", flood, PLAIN["addresses"].hex()], timeout=60, check=True)
    heard = resolver.heard()
    took = time.monotonic() - start
    assert 100 < len(heard) < 600 + 100 * took
