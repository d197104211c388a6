"""Ports: clients that may do so reach servers inside a sandbox from outside."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

import anyio
import pytest

from skerry.core import Conflict, InvalidArgument, PortClosed, Timeout
from skerry.sdk import AsyncProcess, AsyncSandbox
from skerry.testing.cases.base import Conformance
from skerry.testing.cases.commands.processes import wrote

ECHO = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
"""A server that answers with what it gets, until its client closes its side."""


async def echo(sandbox: AsyncSandbox) -> tuple[AsyncProcess, int]:
    """Start the echo server; its port."""
    process = await sandbox.processes.spawn(["python3", "-c", ECHO])
    await wrote(process, b"\n")
    return process, int((await process.output()).stdout)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def talk(url: str, data: bytes) -> bytes:
    """Send all of `data` to where the URL of a forward leads and read until the other side closes."""
    got, parts = b"", urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    async with await anyio.connect_tcp(parts.hostname, parts.port) as stream, anyio.create_task_group() as group:

        async def send() -> None:
            await stream.send(data)
            await stream.send_eof()

        group.start_soon(send)
        async for part in stream:
            got += part
    return got


class PortsConformance(Conformance):
    """Listening ports, forwards and connections."""

    title = "ports"

    async def test_a_server_is_reached_through_a_forward(self, sandbox: AsyncSandbox) -> None:
        """Bytes go both ways unchanged, and the end of one side is seen by the other."""
        server, port = await echo(sandbox)
        data = os.urandom(2_000_000)
        async with await sandbox.ports.forward(port) as forward:
            assert await talk(forward.url, data) == data
        await server.kill()

    async def test_connections_at_once_are_apart(self, sandbox: AsyncSandbox) -> None:
        """Each client of a forward gets its own answers."""
        server, port = await echo(sandbox)
        async with await sandbox.ports.forward(port) as forward, anyio.create_task_group() as group:

            async def client(number: int) -> None:
                assert await talk(forward.url, bytes([number]) * 100_000) == bytes([number]) * 100_000

            for number in range(15):
                group.start_soon(client, number)
        await server.kill()

    async def test_a_closed_forward_listens_no_more(self, sandbox: AsyncSandbox) -> None:
        """What was opened on this machine is closed again."""
        server, port = await echo(sandbox)
        async with await sandbox.ports.forward(port) as forward:
            local = forward.local_port
        with pytest.raises(OSError, match=r"."):
            await anyio.connect_tcp(forward.host, local)
        await server.kill()

    async def test_a_port_nobody_listens_on_is_closed(self, sandbox: AsyncSandbox) -> None:
        """A specific error, not a forward to nothing or a connection that hangs."""
        port = free_port()
        with pytest.raises(PortClosed):
            await sandbox.ports.forward(port)
        with pytest.raises(PortClosed):
            await sandbox.ports.connect(port)

    async def test_a_taken_local_port_is_a_conflict(self, sandbox: AsyncSandbox) -> None:
        """A forward never gets another port than the caller asked for."""
        server, port = await echo(sandbox)
        with socket.create_server(("127.0.0.1", 0)) as mine, pytest.raises(Conflict):
            await sandbox.ports.forward(port, host="127.0.0.1", local_port=mine.getsockname()[1])
        await server.kill()

    async def test_a_server_that_starts_later_is_waited_for(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`wait` returns when the server listens, so that nobody has to sleep and hope."""
        port = free_port()
        program = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)"
        script = f'until [ -e {directory}/go ]; do sleep 0.05; done; exec python3 -c "{program}"'
        server = await sandbox.processes.spawn(script)
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                assert (await sandbox.ports.wait(port, timeout=30)).port == port

            group.start_soon(wait)
            await sandbox.files.write(f"{directory}/go", b"")
        await server.kill()

    async def test_waiting_ends_with_its_time(self, sandbox: AsyncSandbox) -> None:
        """A server that never starts is a timeout."""
        with pytest.raises(Timeout):
            await sandbox.ports.wait(free_port(), timeout=0.3)

    async def test_the_list_has_what_listens(self, sandbox: AsyncSandbox) -> None:
        """A port is listed while its server runs, and no longer."""
        server, port = await echo(sandbox)
        (found,) = [listening for listening in await sandbox.ports.list() if listening.port == port]
        assert found.address == "127.0.0.1"
        await server.kill()
        await server.wait()
        assert port not in {listening.port for listening in await sandbox.ports.list()}

    async def test_a_url_leads_to_the_server(self, sandbox: AsyncSandbox) -> None:
        """The same port has the same address as long as the object is used."""
        server, port = await echo(sandbox)
        url = await sandbox.ports.url(port)
        assert url.startswith("http://127.0.0.2:")
        assert await sandbox.ports.url(port) == url
        assert await talk(url, b"hello") == b"hello"
        await server.kill()

    async def test_a_connection_needs_no_port_here(self, sandbox: AsyncSandbox) -> None:
        """Straight from the program to the server, with a half-close."""
        server, port = await echo(sandbox)
        connection = await sandbox.ports.connect(port)
        await connection.write(b"ping")
        await connection.close_write()
        got = b""
        while data := await connection.read():
            got += data
        assert got == b"ping"
        await connection.close()
        await server.kill()

    async def test_a_slow_client_does_not_fill_the_memory(self, sandbox: AsyncSandbox) -> None:
        """PrimeIntellect-ai/prime#824: what a client does not take yet must be held back, and then be complete."""
        size = 30_000_000
        program = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        program += f"s.accept()[0].sendall(bytes({size}))"
        server = await sandbox.processes.spawn(["python3", "-c", program])
        await wrote(server, b"\n")
        connection = await sandbox.ports.connect(int((await server.output()).stdout))
        first = await connection.read()
        await anyio.sleep(0.3)
        assert (await server.poll()).exit_code is None
        total = len(first)
        while data := await connection.read():
            total += len(data)
        assert total == size
        await connection.close()

    async def test_a_port_that_is_none_is_refused(self, sandbox: AsyncSandbox) -> None:
        """Ports are 1 to 65535."""
        for port in (0, -1, 65_536):
            with pytest.raises(InvalidArgument):
                await sandbox.ports.forward(port)
