"""Ports from Python: real servers in real sandboxes, and agents that lie."""

from __future__ import annotations

import asyncio
import os
import socket
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    Conflict,
    Corrupted,
    FileError,
    InvalidArgument,
    ListeningPort,
    PortClosed,
    Sandbox,
    Timeout,
)
from skerry.providers.local.sandbox import record
from skerry.wire import DialDone, Dialled, Empty, PortEntry, Type, data_frame
from tests.sdk.fake_agent import Connection, FakeProvider, failure, polite, reply

SERVERS = r"""
import asyncio, os, sys

async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()

async def first(reader, writer):  # says all it has to say and leaves
    writer.write(b"hello and goodbye")
    writer.close()

async def count(reader, writer):  # answers when the client has said all
    total = 0
    while data := await reader.read(65536):
        total += len(data)
    writer.write(str(total).encode())
    writer.close()

async def flood(reader, writer):
    while True:
        writer.write(bytes(65536))
        await writer.drain()

async def main():
    for port, serve in enumerate((echo, first, count, flood), 9001):
        await asyncio.start_server(serve, "127.0.0.1", port, backlog=256)
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
ECHO, FIRST, COUNT, FLOOD = 9001, 9002, 9003, 9004


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create()
    with anyio.fail_after(100):
        yield sandbox
    await sandbox.destroy()


@pytest.fixture
async def servers(box: AsyncSandbox) -> AsyncSandbox:
    await box.processes.spawn(["python3", "-c", SERVERS])
    await box.ports.wait(FLOOD)
    return box


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        data: bytes = answer.read()
        return data


def agent_pid(home: Path, sandbox: AsyncSandbox) -> int:
    init = record.read(home / "sandboxes" / sandbox.id).init
    assert init is not None
    return init.pid


def descriptors(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def eventually(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
async def test_http_through_a_forward(address: str, box: AsyncSandbox) -> None:
    await box.files.write("page", "the page")
    await box.processes.spawn(["python3", "-m", "http.server", "--bind", address, "8000"])
    assert await box.ports.wait(8000) == ListeningPort(port=8000, address=address, uid=1000)
    assert [entry.port for entry in await box.ports.list()] == [8000]
    async with await box.ports.forward(8000) as forward:
        assert forward.url == f"http://127.0.0.2:{forward.local_port}"
        assert (forward.port, forward.host) == (8000, "127.0.0.2")
        assert await asyncio.to_thread(get, f"{forward.url}/page") == b"the page"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((forward.host, forward.local_port))


async def test_a_url_stays_the_same_and_ends_with_the_sandbox_object(box: AsyncSandbox) -> None:
    await box.files.write("page", "the page")
    await box.processes.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
    await box.ports.wait(8000)
    first, second = await asyncio.gather(box.ports.url(8000), box.ports.url(8000))
    assert first == second
    assert await asyncio.to_thread(get, f"{first}/page") == b"the page"
    await box.close()
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(get, first)
    assert await asyncio.to_thread(get, f"{await box.ports.url(8000)}/page") == b"the page"


async def test_a_forward_may_come_before_its_server(box: AsyncSandbox) -> None:
    with pytest.raises(PortClosed):
        await box.ports.forward(8000)
    opening = asyncio.create_task(box.ports.forward(8000, wait=60))
    await asyncio.sleep(0)
    await box.processes.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
    async with await opening as forward:
        assert b"Directory listing" in await asyncio.to_thread(get, forward.url)


async def test_megabytes_both_ways_at_once_and_a_hundred_connections(servers: AsyncSandbox, skerry_home: Path) -> None:
    pid = agent_pid(skerry_home, servers)
    await servers.usage()  # every helper of the agent is there
    before, ours = descriptors(pid), descriptors("self")
    async with await servers.ports.forward(ECHO) as forward:

        async def talk(size: int) -> None:
            data = os.urandom(size)
            reader, writer = await asyncio.open_connection(forward.host, forward.local_port)

            async def send() -> None:
                for at in range(0, size, 1 << 16):
                    writer.write(data[at : at + (1 << 16)])
                    await writer.drain()
                writer.write_eof()

            sending = asyncio.create_task(send())
            assert await reader.read(-1) == data
            await sending
            writer.close()
            await writer.wait_closed()

        await talk(20_000_000)
        await asyncio.gather(*(talk(50_000 + number) for number in range(100)))
    await eventually(lambda: descriptors(pid) == before)
    await eventually(lambda: descriptors("self") == ours)


async def test_a_half_closed_connection_still_answers_and_a_server_may_close_first(servers: AsyncSandbox) -> None:
    async with await servers.ports.forward(COUNT) as forward:
        reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
        writer.write(bytes(1_000_000))
        writer.write_eof()
        assert await reader.read(-1) == b"1000000"
        writer.close()
        await writer.wait_closed()
    async with await servers.ports.forward(FIRST) as forward:
        reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
        assert await reader.read(-1) == b"hello and goodbye"
        writer.close()
        await writer.wait_closed()


async def test_a_slow_reader_holds_the_server_back_and_costs_little(servers: AsyncSandbox, skerry_home: Path) -> None:
    pid = agent_pid(skerry_home, servers)

    def resident(who: int | str) -> int:
        return int(Path(f"/proc/{who}/status").read_text().split("RssAnon:")[1].split()[0])

    async with await servers.ports.forward(FLOOD) as forward:
        before = resident(pid), resident("self")
        reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
        moved = 0
        for _ in range(30):
            moved += len(await reader.readexactly(1 << 20))
            await asyncio.sleep(0)
        assert moved == 30 << 20
        assert resident(pid) - before[0] < 4096
        assert resident("self") - before[1] < 32 << 10
        writer.transport.abort()


async def test_a_dial_that_fails_resets_the_connection(box: AsyncSandbox) -> None:
    server = await box.processes.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
    async with await box.ports.forward(8000, wait=30) as forward:
        await server.kill()
        await server.wait()
        reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_a_sandbox_destroyed_meanwhile_resets_and_leaves_nothing(servers: AsyncSandbox) -> None:
    before = descriptors("self")
    forward = await servers.ports.forward(ECHO)
    reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    await servers.destroy()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((forward.host, forward.local_port))
    await eventually(lambda: descriptors("self") <= before)


async def test_bad_input_is_refused_before_anything_happens(box: AsyncSandbox) -> None:
    ports = box.ports
    for bad in (0, -1, 70000, True, "80", 1.5):
        for call in (ports.forward, ports.connect, ports.wait, ports.url):
            with pytest.raises(InvalidArgument):
                await call(bad)  # type: ignore[arg-type,operator]
    with pytest.raises(InvalidArgument):
        await ports.forward(80, local_port=70000)
    with pytest.raises(InvalidArgument):
        await ports.forward(80, wait=-1)
    with pytest.raises(InvalidArgument):
        await ports.connect(80, address="localhost")
    with pytest.raises(PortClosed):
        await ports.connect(80)
    with pytest.raises(Timeout):
        await ports.wait(80, timeout=0.05)


async def test_a_local_port_in_use_is_a_conflict(servers: AsyncSandbox) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken, pytest.raises(Conflict):
        await servers.ports.forward(ECHO, local_port=taken.getsockname()[1])
    with pytest.raises(InvalidArgument):
        await servers.ports.forward(ECHO, host="192.0.2.1")
    async with await servers.ports.forward(ECHO, host="::1") as forward:
        assert forward.url == f"http://[::1]:{forward.local_port}"


async def test_a_connection_reads_writes_and_ends(servers: AsyncSandbox) -> None:
    async with await servers.ports.connect(ECHO) as connection:
        assert connection.address == "127.0.0.1"
        await connection.write(b"hello")
        assert await connection.read(2) == b"he"
        assert await connection.read() == b"llo"
        await connection.close_write()
        assert await connection.read() == b""
        with pytest.raises(InvalidArgument):
            await connection.write(b"more")


def test_blocking_code_reaches_ports_too() -> None:
    with Sandbox.create() as sandbox:
        sandbox.processes.spawn(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
        with sandbox.ports.forward(8000, wait=30) as forward:
            assert b"Directory listing" in get(forward.url)
        with sandbox.ports.connect(8000) as connection:
            connection.write(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.read().startswith(b"HTTP/1.0 200")


UP = reply(1, Dialled(address="127.0.0.1"), final=False)
BROKEN_DIALS = {
    "no beginning": [data_frame(1, 0, 0, b"x")],
    "a final beginning": [reply(1, Dialled(address="127.0.0.1"))],
    "an end without END": [UP, reply(1, DialDone(sent=0, received=0))],
    "more than was granted": [UP, data_frame(1, 0, 0, bytes(256 * 1024 + 1))],
}


@pytest.mark.parametrize("what", BROKEN_DIALS)
async def test_a_connection_ends_with_corrupted_after(what: str, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(Type.DIAL, *BROKEN_DIALS[what])

    async def read_all() -> None:
        connection = await sandbox.ports.connect(80)
        while await connection.read():
            pass

    with anyio.fail_after(5), pytest.raises(Corrupted):
        await read_all()
    fake.script = polite
    assert (await sandbox.exec("again")).stdout == "again"


async def test_a_forwarded_connection_that_did_not_end_well_is_reset(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    listed = reply(1, PortEntry(port=80, address="::"), final=False) + reply(1, Empty())

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened(Type.PORTS)
        await connection.raw(listed)
        stream = (await connection.opened(Type.DIAL)).stream
        head = reply(stream, Dialled(address="::1"), final=False)
        await connection.raw(head, data_frame(stream, 0, 0, b"half"), failure(stream, "IO_ERROR"))
        while True:
            await connection.frame()

    fake.script = script
    with anyio.fail_after(10):
        async with await sandbox.ports.forward(80) as forward:
            reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
            writer.close()


@pytest.mark.parametrize(
    "entry",
    [
        PortEntry(port=0, address="::"),
        PortEntry(port=65536, address="::"),
        PortEntry(port=80, address="localhost"),
        PortEntry(port=80, address="::", uid=-1),
    ],
)
async def test_a_port_that_cannot_be_is_corrupted(entry: PortEntry, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(Type.PORTS, reply(1, entry, final=False))
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.ports.list()


async def test_a_reset_inside_is_an_error_and_not_an_end(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(Type.DIAL, UP, data_frame(1, 0, 0, b"half"), failure(1, "IO_ERROR"))
    with anyio.fail_after(5):
        connection = await sandbox.ports.connect(80)
        assert await connection.read() == b"half"
        with pytest.raises(FileError):
            await connection.read()


def answering(kind: Type, *frames: bytes):
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened(kind)
        await connection.raw(*frames)
        while True:
            await connection.frame()

    return script
