"""Ports: who listens is told, and a connection carries every byte, both ways, with both ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.driver.client import BIG, Agent, AgentError, Connection, wait_until


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(AgentError) as caught:
        action()
    return caught.value.code


@contextlib.contextmanager
def listening(address: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.settimeout(20)
        listener.bind((address, port))
        listener.listen(128)
        yield listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def ports(connection: Connection) -> list[wire.PortEntry]:
    stream = connection.open(wire.Ports())
    found = []
    while not (frame := connection.next(stream)).flags & wire.FINAL:
        found.append(wire.PortEntry.decode(frame.payload))
    return found


def dial(connection: Connection, port: int, **options: object) -> int:
    options.setdefault("window", BIG)
    stream = connection.open(wire.Dial(port=port, **options))  # type: ignore[arg-type]
    connection.reply(stream, wire.Dialled, final=False)
    return stream


def received(connection: Connection, stream: int) -> bytes:
    """What comes up to the END; credit for what we send is passed over."""
    parts: list[bytes] = []
    while True:
        frame = connection.next(stream)
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        if frame.type != Type.DATA:
            assert frame.type == Type.CREDIT
            continue
        parts.append(bytes(wire.parse_data(frame.payload)[1]))
        if frame.flags & wire.END:
            return b"".join(parts)


def test_listening_ports_are_listed_once_sorted_and_readable(connection: Connection) -> None:
    with listening() as first, listening("::1") as second, listening("::") as third:
        with listening(port=port_of(first)), socket.socket(socket.AF_INET6) as mapped:
            mapped.bind(("::ffff:127.0.0.1", 0))
            mapped.listen()
            found = ports(connection)
            keys = [(entry.port, entry.address) for entry in found]
            assert {
                (port_of(first), "127.0.0.1"),
                (port_of(second), "::1"),
                (port_of(third), "::"),
                (port_of(mapped), "127.0.0.1"),
            } <= set(keys)
            assert keys == sorted(set(keys))
            assert {entry.uid for entry in found if entry.port == port_of(first)} == {os.getuid()}
        gone = port_of(first)
    assert gone not in {entry.port for entry in ports(connection)}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_bytes_and_ends_go_both_ways(address: str, agent: Agent, connection: Connection) -> None:
    before = agent.descriptors()
    with listening(address) as listener:
        stream = connection.open(wire.Dial(port=port_of(listener)))
        connection.data(stream, b"early", end=False)
        assert connection.reply(stream, wire.Dialled, final=False).address == address
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(100) == b"early"
            peer.sendall(b"answer")
            connection.data(stream, b" and late", offset=5, end=True)
            assert peer.recv(100) == b" and late"
            assert peer.recv(100) == b""
            peer.sendall(b" after the end")
            peer.shutdown(socket.SHUT_WR)
            assert received(connection, stream) == b"answer after the end"
            done = connection.reply(stream, wire.DialDone)
            assert (done.sent, done.received) == (14, 20)
    wait_until(lambda: agent.descriptors() == before)


def test_a_server_may_close_first(connection: Connection) -> None:
    with listening() as listener:
        stream = dial(connection, port_of(listener))
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"bye")
            peer.shutdown(socket.SHUT_WR)
            assert received(connection, stream) == b"bye"
            connection.data(stream, b"still heard", end=True)
            assert peer.recv(100) == b"still heard"
            assert connection.reply(stream, wire.DialDone).sent == 11


def test_close_resets_the_connection(agent: Agent, connection: Connection) -> None:
    before = agent.descriptors()
    with listening() as listener:
        stream = dial(connection, port_of(listener))
        peer, _ = listener.accept()
        with peer:
            connection.send(stream, Type.CLOSE)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
        other = agent.connect()
        dial(other, port_of(listener))
        peer, _ = listener.accept()
        with peer:
            other.close()
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
    wait_until(lambda: agent.descriptors() == before)


def test_a_reset_by_the_server_is_an_error_after_what_it_sent(connection: Connection) -> None:
    with listening() as listener:
        stream = dial(connection, port_of(listener))
        peer, _ = listener.accept()
        peer.sendall(b"half")
        frame = connection.next(stream)
        assert bytes(wire.parse_data(frame.payload)[1]) == b"half"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        assert code_of(lambda: received(connection, stream)) == "IO_ERROR"


def test_nobody_listening_is_port_closed_and_bad_requests_are_refused(connection: Connection) -> None:
    with listening() as listener:
        port = port_of(listener)
    assert code_of(lambda: dial(connection, port)) == "PORT_CLOSED"
    assert code_of(lambda: dial(connection, port, address="::1")) == "PORT_CLOSED"
    for bad in (0, -1, 65536, 1 << 40):
        assert code_of(lambda: dial(connection, bad)) == "INVALID_ARGUMENT"  # noqa: B023
    for address in ("localhost", "1.2.3", "x" * 100, "127.0.0.1\0"):
        assert code_of(lambda: dial(connection, 80, address=address)) == "INVALID_ARGUMENT"  # noqa: B023
    assert code_of(lambda: dial(connection, 80, window=-1)) == "INVALID_ARGUMENT"


def test_a_port_that_meets_itself_is_closed(connection: Connection) -> None:
    """Dialled again and again, an unused port in the range that clients get is sooner or later both ends."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    with listening() as listener:
        port = port_of(listener)
    assert low <= port <= high
    for _ in range(300):
        assert code_of(lambda: dial(connection, port)) == "PORT_CLOSED"


def test_megabytes_at_once_in_both_directions(connection: Connection) -> None:
    sent, back = os.urandom(20_000_000), os.urandom(20_000_000)
    heard = bytearray()

    def serve(peer: socket.socket) -> None:
        writer = threading.Thread(target=lambda: (peer.sendall(back), peer.shutdown(socket.SHUT_WR)))
        writer.start()
        while part := peer.recv(1 << 16):
            heard.extend(part)
        writer.join()

    with listening() as listener:
        stream = dial(connection, port_of(listener))
        peer, _ = listener.accept()
        with peer:
            server = threading.Thread(target=serve, args=(peer,))
            server.start()
            credit, position, got = wire.INPUT_WINDOW, 0, bytearray()
            while True:
                while credit and position < len(sent):
                    piece = sent[position : position + min(credit, 100_000)]
                    credit -= len(piece)
                    connection.data(stream, piece, offset=position, end=position + len(piece) == len(sent))
                    position += len(piece)
                frame = connection.next(stream)
                if frame.type == Type.REPLY:
                    break
                if frame.type == Type.CREDIT:
                    credit += wire.parse_credit(frame.payload)
                else:
                    got += wire.parse_data(frame.payload)[1]
            server.join()
    done = wire.DialDone.decode(frame.payload)
    assert (bytes(heard) == sent, bytes(got) == back) == (True, True)
    assert (done.sent, done.received) == (len(sent), len(back))


def test_neither_side_can_make_the_agent_keep_much(agent: Agent, connection: Connection, binary: Path) -> None:
    with listening() as listener:
        before = agent.rss_kb()
        stream = dial(connection, port_of(listener), window=100_000)
        peer, _ = listener.accept()
        with peer:
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer.send(bytes(1 << 16))
            connection.data(stream, bytes(wire.INPUT_WINDOW))
            got = 0
            while got < 100_000:
                frame = connection.next(stream)
                got += len(wire.parse_data(frame.payload)[1]) if frame.type == Type.DATA else 0
            assert got == 100_000
            connection.ask(wire.Life(), wire.LifeReply)
            assert not any(frame.type == Type.DATA for frame in connection.waiting.get(stream, ()))
            if "asan" not in binary.name:
                assert agent.rss_kb() - before < 2048
    wait_until(lambda: agent.rss_kb() - before < 512 or "asan" in binary.name)


def test_more_input_than_was_granted_ends_the_connection(agent: Agent) -> None:
    connection = agent.connect()
    with listening() as listener:
        stream = dial(connection, port_of(listener))
        connection.data(stream, bytes(wire.INPUT_WINDOW + 1))
        assert connection.broken() == "INVALID_ARGUMENT"


def test_a_sandbox_has_at_most_1024_connections(agent: Agent, connection: Connection) -> None:
    before = agent.descriptors()
    with listening() as listener:
        accepted = []
        streams = []
        for _ in range(1000):
            streams.append(dial(connection, port_of(listener)))
            accepted.append(listener.accept()[0])
        other = agent.connect()
        for _ in range(24):
            dial(other, port_of(listener))
            accepted.append(listener.accept()[0])
        assert code_of(lambda: dial(other, port_of(listener))) == "QUOTA_EXCEEDED"
        connection.send(streams[0], Type.CLOSE)
        connection.ask(wire.Life(), wire.LifeReply)
        dial(other, port_of(listener))
        for peer in accepted:
            peer.close()
        other.close()
        for stream in streams[1:]:
            connection.send(stream, Type.CLOSE)
    wait_until(lambda: agent.descriptors() == before)
