"""The wire gateway: the same rights as REST routes, also when they change, and nothing of a hostile client gets by."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.sync.client import connect
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from skerry.core.errors import ConnectionLost, PermissionDenied, QuotaExceeded, SandboxNotFound, Unauthenticated
from skerry.core.models import SandboxSpec
from skerry.providers.remote import RemoteProvider
from skerry.providers.remote import holder as remote_leases
from skerry.sdk import AsyncSandbox
from skerry.server.access.permissions import Role
from skerry.server.context import MOST_WIRES
from skerry.server.projects import leases
from skerry.wire import FINAL, Decoder, Hello, Life, LifeReply, Read, Type, encode_frame
from tests.server.conftest import Running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def provider(server: Running) -> RemoteProvider:
    return RemoteProvider(server.url, api_key=server.key("host"))


@pytest.fixture
async def box(provider: RemoteProvider) -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(provider)
    yield made
    await made.destroy()


def wire_url(server: Running, sandbox_id: str) -> str:
    return f"ws{server.url.removeprefix('http')}/v1/sandboxes/{sandbox_id}/wire"


async def eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    with anyio.fail_after(seconds):
        while not check():
            await anyio.sleep(0.05)


async def test_a_reader_reads_and_changes_nothing(server: Running, box: AsyncSandbox) -> None:
    await box.files.write("note", b"for all")
    server.share(server.project("host"), "visitor", Role.READ)
    seen = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("visitor")))
    assert await seen.files.read("note") == b"for all"
    for change in (
        seen.exec("true"),
        seen.files.write("note", b"mine"),
        seen.files.remove("note"),
        seen.env.set("A", "1"),
        seen.set_timeout(50),
        seen.destroy(),
    ):
        with pytest.raises(PermissionDenied):
            await change
    assert await seen.files.read("note") == b"for all"
    await seen.close()


async def test_a_reader_does_not_get_the_variables_of_what_runs(server: Running, box: AsyncSandbox) -> None:
    await box.env.set("KEPT", "secret-1")
    sleeper = await box.processes.spawn(["sleep", "60"], env={"GIVEN": "secret-2"})
    server.share(server.project("host"), "visitor", Role.READ)
    seen = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("visitor")))
    assert await seen.files.read("/proc/version")
    pids = [entry.name for entry in await seen.files.list("/proc") if entry.name.isdigit()]
    assert str(sleeper.pid) in pids
    for user in ("user", "root"):
        for path in (f"/proc/{pid}/{name}" for pid in (*pids, "self", "thread-self") for name in ("environ", "mem")):
            try:
                found = await seen.files.read(path, user=user)
            except PermissionDenied:
                continue
            assert (user, found) == ("root", b"HOME=/root\0"), path  # of the worker that reads it
    mine = await box.exec(f"cat /proc/{sleeper.pid}/environ")
    assert "KEPT=secret-1" in mine.stdout and "GIVEN=secret-2" in mine.stdout
    await sleeper.kill()
    await seen.close()


async def test_a_stranger_and_a_wrong_key_do_not_get_in(server: Running, box: AsyncSandbox) -> None:
    stranger = RemoteProvider(server.url, api_key=server.key("stranger"))
    for call in (stranger.dial, stranger.get, stranger.usage):
        with pytest.raises(SandboxNotFound):
            await call(box.id)
    with pytest.raises(Unauthenticated):
        await RemoteProvider(server.url, api_key="sk_wrong_key").dial(box.id)
    assert await stranger.list() == []


async def test_a_key_that_is_revoked_ends_its_connections(server: Running, box: AsyncSandbox) -> None:
    text = server.key("host")
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=text))
    assert (await theirs.exec("true")).ok
    async with theirs.exec_stream("sleep 100") as stream:
        key = server.context.store.accounts.check_key(text)
        assert key is not None
        server.call(lambda: server.context.store.keys.remove(key.id))
        with anyio.fail_after(20), pytest.raises((ConnectionLost, Unauthenticated)):
            async for _ in stream:
                pass
    with pytest.raises(Unauthenticated):
        await theirs.exec("true")
    await theirs.close()


async def test_a_member_who_is_put_out_loses_what_is_open(server: Running, box: AsyncSandbox) -> None:
    project = server.project("host")
    server.share(project, "leaver", Role.WRITE)
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("leaver")))
    assert (await theirs.exec("true")).ok
    server.call(lambda: server.context.store.projects.set_member(project.id, server.user("leaver").id, None))
    await anyio.sleep(1.1)  # what the table said may be remembered for a second
    with pytest.raises((PermissionDenied, ConnectionLost, SandboxNotFound)):
        await theirs.exec("true")
    await theirs.close()


async def test_who_may_only_read_from_now_on_types_no_more_into_what_is_open(
    server: Running, box: AsyncSandbox
) -> None:
    project = server.project("host")
    server.share(project, "demoted", Role.WRITE)
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("demoted")))
    terminal = await theirs.terminals.create("cat > typed")
    await terminal.write("before\n")
    server.share(project, "demoted", Role.READ)

    async def go_on() -> None:
        while True:
            await terminal.write("after\n")
            await anyio.sleep(0.2)

    with anyio.fail_after(20), pytest.raises((PermissionDenied, ConnectionLost)):
        await go_on()
    assert (await theirs.files.read("typed")).startswith(b"before\n")  # to read is still allowed
    await theirs.close()


async def test_who_is_no_administrator_any_more_loses_what_is_open(server: Running, box: AsyncSandbox) -> None:
    chief, _ = server.user("chief", admin=True), server.user("admin")  # who stays one
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("chief")))
    async with theirs.exec_stream("sleep 100") as stream:
        server.call(lambda: server.context.store.users.change(chief.id, admin=False))
        with anyio.fail_after(20), pytest.raises((ConnectionLost, SandboxNotFound)):
            async for _ in stream:
                pass
    await theirs.close()


async def test_what_is_done_over_the_wire_is_audited(server: Running, box: AsyncSandbox) -> None:
    await box.exec("echo not-in-the-audit")

    def written() -> bool:
        return any(
            entry.operation == "WIRE START" and entry.target == f"sandbox {box.id}" and entry.actor == "user:host"
            for entry in server.call(lambda: server.context.store.audit.before(None))
        )

    await eventually(written)
    assert "not-in-the-audit" not in repr(server.call(lambda: server.context.store.audit.before(None)))


async def test_a_socket_that_ends_while_the_database_is_busy_loses_nothing_of_the_audit(
    server: Running, box: AsyncSandbox
) -> None:
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("host")))
    assert (await theirs.exec("true")).ok
    busy, done = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        busy.set()
        assert done.wait(60)

    holding = asyncio.run_coroutine_threadsafe(server.context.store.db.write(hold), server.loop)
    try:
        await anyio.to_thread.run_sync(busy.wait)
        assert (await theirs.exec("true")).ok
        await anyio.sleep(1)  # the write is due, and waits for the one before it
        await theirs.close()
        await anyio.sleep(0.5)
    finally:
        done.set()
        await anyio.to_thread.run_sync(holding.result)

    def starts() -> int:
        entries = server.call(lambda: server.context.store.audit.before(None))
        return sum(entry.operation == "WIRE START" and entry.target == f"sandbox {box.id}" for entry in entries)

    await eventually(lambda: starts() == 2)


async def test_a_connection_goes_on_where_the_audit_cannot_be_written(
    server: Running, box: AsyncSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk: then the log has it."""

    def limit(pages: int) -> None:
        server.call(lambda: server.context.store.db.write(lambda db: db.execute(f"PRAGMA max_page_count={pages}")))

    assert (await box.exec("true")).ok
    limit(1)  # as many as there are: not one more
    try:
        for _ in range(300):
            assert (await box.exec("true")).ok
            if any("WIRE START" in repr(vars(record)) for record in caplog.records):
                break
        else:
            pytest.fail("the database never was full")
    finally:
        limit(2**30)
    assert (await box.exec("true")).ok


async def test_no_lifetime_above_the_maximum_by_way_of_the_agent(box: AsyncSandbox) -> None:
    for deadline in (-1, 10**12):
        with pytest.raises(QuotaExceeded):
            await box._link.request(Life(deadline_ms=deadline), LifeReply)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 64,
        encode_frame(0, Type.HELLO, Hello(generation=1, token=b"guess").encode()),
        encode_frame(0, Type.BOOT),
        encode_frame(1, Type.REPLY),
        "text",
    ],
)
def test_who_breaks_the_protocol_is_put_out(server: Running, provider: RemoteProvider, message: bytes | str) -> None:
    made = asyncio.run(AsyncSandbox.create(provider))
    headers = {"Authorization": f"Bearer {provider.login.key}"}
    with connect(
        wire_url(server, made.id),
        additional_headers=headers,
        subprotocols=["skerry.wire.1"],  # type: ignore[list-item]
        compression=None,
        proxy=None,
    ) as opened:
        opened.recv(timeout=20)  # the agent's greeting
        opened.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1002
    asyncio.run(made.destroy())


async def test_a_reader_leaves_connections_to_others(server: Running, box: AsyncSandbox) -> None:
    server.share(server.project("host"), "crowd", Role.READ)
    crowd = RemoteProvider(server.url, api_key=server.key("crowd"))
    opened = [await crowd.dial(box.id) for _ in range(MOST_WIRES)]
    with pytest.raises(QuotaExceeded):
        await crowd.dial(box.id)
    theirs = await AsyncSandbox.connect(box.id, provider=RemoteProvider(server.url, api_key=server.key("host")))
    assert (await theirs.exec("true")).ok
    await theirs.close()
    for channel in opened:
        await channel.stream.aclose()
    assert (await AsyncSandbox.connect(box.id, provider=crowd)).id == box.id
    await (await crowd.dial(box.id)).stream.aclose()


class Slow:
    """A client of the wire that reads only when it is told to."""

    def __init__(self, url: str, key: str) -> None:
        uri = parse_uri(url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        self._socket.connect((uri.host, uri.port))
        self._socket.settimeout(20)
        self._protocol = ClientProtocol(uri, subprotocols=[Subprotocol("skerry.wire.1")], max_size=None)
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {key}"
        self._protocol.send_request(request)
        self._flush()
        self._decoder = Decoder()
        self.data: dict[int, bytearray] = {}
        """What has come on each stream; stream 0 is there from the agent's greeting on."""
        self.ended: set[int] = set()

    def send(self, data: bytes) -> None:
        self._protocol.send_binary(data)
        self._flush()

    def read(self) -> bool:
        """What there is; False: the server has ended it."""
        data = self._socket.recv(1 << 20)
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, WebSocketFrame) and event.opcode is Opcode.BINARY:
                for frame in self._decoder.feed(event.data):
                    content = frame.payload[8:] if frame.type == Type.DATA else b""
                    self.data.setdefault(frame.stream, bytearray()).extend(content)
                    if frame.type == Type.ERROR or (frame.type == Type.REPLY and frame.flags & FINAL):
                        self.ended.add(frame.stream)
        self._flush()
        return bool(data)

    def close(self) -> None:
        self._socket.close()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)


async def test_a_refusal_never_comes_in_the_middle_of_what_the_agent_says(server: Running, box: AsyncSandbox) -> None:
    """Also where what the agent says waits for a slow client, which reads and asks at the same moment."""
    content = os.urandom(6_000_000)
    await box.files.write("large", content)
    server.share(server.project("host"), "visitor", Role.READ)
    client = Slow(wire_url(server, box.id), server.key("visitor"))

    def ask(stream: int, length: int) -> None:
        client.send(encode_frame(stream, Type.READ, Read(path=b"large", length=length, window=length).encode()))
        time.sleep(0.1)
        server.loop.call_soon_threadsafe(time.sleep, 0.05)  # so that it finds all that follows at once
        time.sleep(0.01)
        client.send(encode_frame(stream + 1, Type.REMOVE))
        while not {stream, stream + 1} <= client.ended:
            assert client.read()
        assert client.data.pop(stream) == content[:length]

    def ask_all() -> None:
        while not client.data:
            assert client.read()
        for number in range(50):
            ask(2 * number + 1, 1_000_000 + 100_000 * number)

    try:
        await anyio.to_thread.run_sync(ask_all)
    finally:
        client.close()


def test_a_refused_upgrade_says_why(server: Running, provider: RemoteProvider) -> None:
    made = asyncio.run(AsyncSandbox.create(provider))
    headers = {"Authorization": f"Bearer {provider.login.key}"}
    for extra, protocols, status in (
        ({}, None, 400),
        ({"Origin": "https://evil.example"}, ["skerry.wire.1"], 403),
    ):
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(
                wire_url(server, made.id),
                additional_headers=headers | extra,
                subprotocols=protocols,  # type: ignore[arg-type]
                proxy=None,
            ),
        ):
            pass
        assert refused.value.response.status_code == status
        assert "code" in json.loads(refused.value.response.body or b"{}")
    asyncio.run(made.destroy())


CLIENT = """
import sys, time
from skerry import Sandbox
from skerry.providers.remote import RemoteProvider
with Sandbox.create(RemoteProvider()) as box:
    print(box.id, flush=True)
    time.sleep(600)
"""


async def test_what_a_dead_client_held_is_ended_and_a_living_one_s_is_not(
    server: Running, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of a client: its `with` block cannot end anything any more."""
    monkeypatch.setattr(leases, "LIFETIME", 12.0)
    environment = os.environ | {"SKERRY_URL": server.url, "SKERRY_API_KEY": server.key("host")}
    client = subprocess.Popen([sys.executable, "-c", CLIENT], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        theirs = (await anyio.to_thread.run_sync(client.stdout.readline)).strip()
        async with await AsyncSandbox.create(provider) as mine:
            assert (await provider.get(theirs)).leased_to == client.pid
            client.send_signal(signal.SIGKILL)
            killed = time.monotonic()

            def there() -> bool:
                return server.call(lambda: server.context.store.ownership.get("sandbox", theirs)).gone  # type: ignore[union-attr]

            await eventually(there, 60)
            assert time.monotonic() - killed > 5
            with pytest.raises(SandboxNotFound):
                await provider.get(theirs)
            assert (await mine.exec("echo lives")).stdout == "lives\n"
    finally:
        client.kill()
        client.wait()
        if client.stdout is not None:
            client.stdout.close()


async def test_a_server_that_stood_still_ends_nothing_of_who_could_not_be_heard(
    server: Running, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_leases, "RENEW_EVERY", 0.5)
    async with await AsyncSandbox.create(provider) as mine:
        await anyio.sleep(6)  # renewed as often as that from now on
        monkeypatch.setattr(leases, "LIFETIME", 4.0)
        server.loop.call_soon_threadsafe(time.sleep, 8.0)
        await anyio.sleep(11)
        assert (await mine.exec("echo lives")).stdout == "lives\n"


async def test_a_lease_that_is_given_up_while_others_are_ended_ends_nothing(
    server: Running, provider: RemoteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await anyio.to_thread.run_sync(lambda: RemoteProvider(server.url, api_key=server.key("host")))
    made = {(await kept.create(SandboxSpec(leased=True))).id for _ in range(2)}
    kept._holder.close()  # as if the process were gone: nobody names it any more
    ended: list[str] = []
    destroy = server.context.providers.default.destroy

    async def slowly(sandbox_id: str) -> None:
        ended.append(sandbox_id)
        for other in made - {sandbox_id}:
            await server.context.leases.release("sandbox", other)
        await destroy(sandbox_id)

    monkeypatch.setattr(server.context.providers.default, "destroy", slowly)
    monkeypatch.setattr(leases, "LIFETIME", 0.0)
    await eventually(lambda: bool(ended))
    await anyio.sleep(3)
    (other,) = made - {ended[0]}
    assert (await kept.get(other)).id == other
    monkeypatch.undo()
    await kept.destroy(other)


async def test_a_hidden_snapshot_of_a_dead_client_goes_with_it(
    server: Running, provider: RemoteProvider, box: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await provider.create_snapshot(box.id, name=None, description="", hidden=True)
    assert made.id in {lease.id for lease in server.context.store.accounts.leases()}
    provider._holder.drop(made.id)  # as if the process were gone: nobody names it any more
    monkeypatch.setattr(leases, "LIFETIME", -1.0)
    await eventually(lambda: made.id not in {lease.id for lease in server.context.store.accounts.leases()})
