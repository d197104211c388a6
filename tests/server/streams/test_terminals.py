"""Terminals over the server: no byte is lost or doubled, whatever becomes of the connection or of the server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from skerry.core.contract.provider import AGENT_PORT, Channel
from skerry.http.websocket import WebSocketStream
from skerry.providers.remote import RemoteProvider
from skerry.sdk import AsyncSandbox, Sandbox
from skerry.server.access.permissions import Role
from skerry.server.streams import browser
from tests.server.conftest import Running
from tests.server.separate import Separate

HEAD = struct.Struct(">BQ")
DISCONNECTS = int(os.environ.get("SKERRY_DISCONNECTS", "50"))
KILLS = 5 if os.environ.get("SOAK") else 2
# Paced, because nobody holds it back while there is no connection: the ring must have the rest when it comes back.
LINES = "stty -opost; i=1; while :; do seq $i $((i+199)); i=$((i+200)); sleep 0.002; done"
SLOW_LINES = "stty -opost; i=1; while :; do seq $i $((i+19)); i=$((i+20)); sleep 0.01; done"

pytestmark = pytest.mark.anyio


class Counted:
    """Numbered lines as they come, and what is wrong with them."""

    def __init__(self) -> None:
        self.expected, self.lost, self.doubled, self._rest = 1, 0, 0, b""

    def add(self, data: bytes) -> None:
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            number = int(line)
            self.lost += max(0, number - self.expected)
            self.doubled += number < self.expected
            self.expected = number + 1

    @property
    def faults(self) -> tuple[int, int]:
        return self.lost, self.doubled


class Fragile(RemoteProvider):
    """Its connections can be cut in the middle of whatever they carry."""

    stream: WebSocketStream | None = None

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        channel = await super().dial(sandbox_id, port)
        assert isinstance(channel.stream, WebSocketStream)
        self.stream = channel.stream
        return channel

    def cut(self) -> None:
        assert self.stream is not None
        self.stream.protocol.abort()


class Screen:
    """A browser's side of a terminal: it acknowledges what it has shown, and comes back where it was."""

    def __init__(self, url: str, key: str, sandbox: str, terminal: int, **query: Any) -> None:
        self._path = f"ws{url.removeprefix('http')}/v1/sandboxes/{sandbox}/terminals/{terminal}"
        self._headers, self._query = {"Authorization": f"Bearer {key}"}, query
        self.offset, self.rest, self.told = 0, b"", list[dict[str, Any]]()
        self.socket: ClientConnection | None = None

    def open(self) -> ClientConnection:
        query = "&".join(f"{name}={value}" for name, value in {"since": self.offset, **self._query}.items())
        self.socket = connect(
            f"{self._path}?{query}",
            additional_headers=self._headers,
            compression=None,
            max_size=None,
            proxy=None,
            legacy=True,
        )
        return self.socket

    def cut(self) -> None:
        assert self.socket is not None
        with contextlib.suppress(OSError):  # the server has done it
            self.socket.socket.shutdown(socket.SHUT_RDWR)  # as a network that is gone: nothing is said
        self.socket = None

    def next(self) -> bytes:
        """The next bytes that are new here; connects again when it has to."""
        while True:
            try:
                message = (self.socket or self.open()).recv(timeout=60)
            except (ConnectionClosed, OSError, InvalidHandshake):
                self.socket = None
                time.sleep(0.05)
                continue
            if isinstance(message, str):
                self.told.append(json.loads(message))
                assert self.told[-1]["type"] not in ("gap", "error"), self.told[-1]
                if self.told[-1]["type"] == "exit":
                    return b""
                continue
            channel, offset = HEAD.unpack(message[: HEAD.size])
            assert (channel, offset) == (1, self.offset), (channel, offset, self.offset)
            self.offset += len(message) - HEAD.size
            assert self.socket is not None
            try:
                self.socket.send(json.dumps({"type": "ack", "offset": self.offset}))
            except ConnectionClosed:
                pass
            return bytes(message[HEAD.size :])

    def until(self, text: bytes) -> bytes:
        """What has come up to and with `text`; the rest is for the next call."""
        while text not in self.rest:
            part = self.next()
            assert part, f"it ended: {self.told[-1]}, {self.rest!r}"
            self.rest += part
        end = self.rest.index(text) + len(text)
        seen, self.rest = self.rest[:end], self.rest[end:]
        return seen


def closed_with(opened: ClientConnection) -> int | None:
    """The code that the server ends a socket with."""
    try:
        while True:
            opened.recv(timeout=20)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


@pytest.fixture(scope="module")
def key(server: Running) -> str:
    return server.key("typist")


@pytest.fixture(scope="module")
def sandbox(server: Running, key: str) -> Iterator[Sandbox]:
    made = Sandbox.create(RemoteProvider(server.url, api_key=key))
    yield made
    made.destroy()


@pytest.mark.soak
@pytest.mark.timeout(120 + DISCONNECTS)
async def test_no_line_is_lost_or_doubled_over_many_disconnects(server: Running, key: str) -> None:
    """The client's connection is cut in the middle of data, at random moments."""
    chance, provider, seen, cuts, next_cut = random.Random(20), Fragile(server.url, api_key=key), Counted(), 0, 1
    box = await AsyncSandbox.create(provider)
    try:
        terminal = await box.terminals.create(LINES)
        with anyio.fail_after(100 + DISCONNECTS):
            async with terminal.attach() as stream:
                async for chunk in stream:
                    seen.add(chunk.data)
                    if seen.expected < next_cut:
                        continue
                    if cuts == DISCONNECTS:
                        break
                    cuts, next_cut = cuts + 1, seen.expected + chance.randrange(1, 3000)
                    provider.cut()
                assert stream.gap == 0
    finally:
        await box.destroy()
    print(f"{cuts} disconnects, {seen.expected - 1} lines, {seen.lost} lost, {seen.doubled} doubled")
    assert (cuts, *seen.faults) == (DISCONNECTS, 0, 0)


@pytest.mark.soak
@pytest.mark.timeout(120 + DISCONNECTS)
def test_a_browser_that_comes_back_with_its_offset_misses_nothing(server: Running, key: str, sandbox: Sandbox) -> None:
    chance, seen, cuts, next_cut = random.Random(21), Counted(), 0, 1
    terminal = sandbox.terminals.create(LINES)
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    while cuts < DISCONNECTS:
        seen.add(screen.next())
        if seen.expected >= next_cut:
            cuts, next_cut = cuts + 1, seen.expected + chance.randrange(1, 3000)
            screen.cut()
    terminal.kill()
    print(f"{cuts} disconnects of a browser, {seen.expected - 1} lines, {seen.lost} lost, {seen.doubled} doubled")
    assert seen.faults == (0, 0)


@pytest.mark.soak
@pytest.mark.timeout(60 + 60 * KILLS)
async def test_a_killed_server_loses_no_byte_of_any_terminal(skerry_home: Path) -> None:
    """kill -9 of the server in the middle of data, and its start: for the SDK and for a browser."""
    running = await anyio.to_thread.run_sync(Separate, skerry_home.parent / "killed")
    provider = RemoteProvider(running.url, api_key=running.key)
    box = await AsyncSandbox.create(provider, timeout=600)
    try:
        await box.__aenter__()  # leased to this process: a server that starts again does not end it
        seen, browsed = Counted(), Counted()
        terminal, other = await box.terminals.create(SLOW_LINES), await box.terminals.create(SLOW_LINES)
        screen = Screen(running.url, running.key, box.id, other.id)

        def browse(lines: int) -> None:
            goal = browsed.expected + lines
            while browsed.expected < goal:
                browsed.add(screen.next())

        def interrupt() -> None:
            running.kill()
            running.start()

        async with terminal.attach() as stream:
            for _ in range(KILLS):
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.to_thread.run_sync, interrupt)
                    group.start_soon(anyio.to_thread.run_sync, browse, 3000)
                    goal = seen.expected + 3000
                    while seen.expected < goal:
                        seen.add((await anext(stream)).data)
            assert stream.gap == 0
        screen.cut()
        assert (await box.exec("echo as before")).stdout == "as before\n"
    finally:
        await box.destroy()
        provider.close()
        await anyio.to_thread.run_sync(running.stop)
    print(f"{KILLS} kills of the server, {seen.expected + browsed.expected - 2} lines, {seen.faults} {browsed.faults}")
    assert seen.faults == browsed.faults == (0, 0)


def test_a_browser_uses_a_terminal(server: Running, key: str, sandbox: Sandbox) -> None:
    terminal = sandbox.terminals.create("stty size; read line; echo got $line; stty size; exit 3", cols=100, rows=30)
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    screen.until(b"30 100\r\n")
    assert screen.socket is not None
    screen.socket.send(json.dumps({"type": "resize", "cols": 90, "rows": 20}))
    screen.socket.send("hällo\n".encode())
    screen.until("got hällo\r\n".encode())
    screen.until(b"20 90\r\n")
    assert screen.next() == b""
    assert screen.told[0] == {"type": "state", "cols": 100, "rows": 30, "controls": True}
    assert {"type": "state", "cols": 90, "rows": 20, "controls": True} in screen.told
    assert (screen.told[-1]["exit_code"], screen.told[-1]["status"]) == (3, "exited")
    # All of it again, from the start: the ring has it.
    again = Screen(server.url, key, sandbox.id, terminal.id)
    assert again.until(b"20 90\r\n").startswith(b"30 100\r\n")


def test_who_does_not_acknowledge_is_shown_no_more(server: Running, key: str, sandbox: Sandbox) -> None:
    terminal = sandbox.terminals.create("stty -opost; head -c 5000000 /dev/zero | tr '\\0' x; sleep 100")
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    opened, got, end = screen.open(), 0, 0
    try:
        while True:
            message = opened.recv(timeout=1.5)
            if isinstance(message, bytes):
                got += len(message) - HEAD.size
                end = (
                    HEAD.unpack(message[: HEAD.size])[1] + len(message) - HEAD.size
                )  # the first bytes may be gone by now
    except TimeoutError:
        pass
    assert 256 * 1024 <= got < 1 << 20
    opened.send(json.dumps({"type": "ack", "offset": end}))
    assert isinstance(opened.recv(timeout=20), bytes)
    screen.cut()
    terminal.kill()


def test_a_program_that_shows_what_it_reads_takes_a_large_paste(server: Running, key: str, sandbox: Sandbox) -> None:
    """It reads on only when what it has shown is acknowledged, which comes behind the rest of the paste."""
    terminal = sandbox.terminals.create("stty raw -echo; echo ready; exec cat")
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    screen.until(b"ready\n")
    paste = os.urandom(3 << 20)
    assert screen.socket is not None
    for at in range(0, len(paste), 1 << 20):
        screen.socket.send(paste[at : at + (1 << 20)])
    began, came = time.monotonic(), screen.rest
    while len(came) < len(paste):
        came += screen.next()
        assert time.monotonic() - began < 60
    assert came == paste
    screen.cut()
    terminal.kill()


def test_a_socket_whose_input_is_never_read_ends_and_says_why(
    server: Running, key: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "PATIENCE", 1.0)
    made = sandbox.processes.spawn("sleep 100", stdin=True)
    path = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{sandbox.id}/processes/{made.id}"
    with connect(path, additional_headers={"Authorization": f"Bearer {key}"}, compression=None, proxy=None) as opened:
        for _ in range(8):
            opened.send(bytes(1 << 20))
        told = json.loads(opened.recv(timeout=20))
        assert (told["type"], told["code"]) == ("error", "TOO_LARGE")
        assert closed_with(opened) == 4413
    made.kill()


def test_a_browser_that_goes_while_its_input_waits_leaves_nothing(server: Running, key: str, sandbox: Sandbox) -> None:
    made = sandbox.processes.spawn("sleep 100", stdin=True)
    path = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{sandbox.id}/processes/{made.id}"
    before = server.context.metrics.open["sockets"]
    with connect(path, additional_headers={"Authorization": f"Bearer {key}"}, compression=None, proxy=None) as opened:
        opened.send(bytes(1 << 20))
        assert server.context.metrics.open["sockets"] == before + 1
    end = time.monotonic() + 30
    while server.context.metrics.open["sockets"] > before:
        assert time.monotonic() < end
        time.sleep(0.1)
    made.kill()


def test_who_was_taken_over_may_still_change_the_size_of_a_window(server: Running, key: str, sandbox: Sandbox) -> None:
    """It tells before it knows; what is shown goes on."""
    terminal = sandbox.terminals.create("stty -echo; echo ready; cat")
    first, second = (Screen(server.url, key, sandbox.id, terminal.id) for _ in range(2))
    first.until(b"ready\r\n")
    second.until(b"ready\r\n")
    assert first.socket is not None and second.socket is not None
    first.socket.send(json.dumps({"type": "resize", "cols": 90, "rows": 20}))
    while (told := json.loads(first.socket.recv(timeout=20)))["type"] == "state":
        pass
    assert (told["type"], told["code"]) == ("error", "CONFLICT")
    second.socket.send(b"more\n")
    first.until(b"more\r\n")
    for screen in (first, second):
        screen.cut()
    terminal.kill()


def test_a_viewer_sees_and_types_nothing_and_is_told_of_a_take_over(
    server: Running, key: str, sandbox: Sandbox
) -> None:
    terminal = sandbox.terminals.create("cat")
    first = Screen(server.url, key, sandbox.id, terminal.id)
    first.open().send(b"one\n")
    first.until(b"one\r\none\r\n")
    viewer = Screen(server.url, key, sandbox.id, terminal.id, mode="view")
    viewer.until(b"one\r\none\r\n")
    assert viewer.socket is not None
    viewer.socket.send(b"nothing\n")
    assert closed_with(viewer.socket) == 4400
    second = Screen(server.url, key, sandbox.id, terminal.id, mode="takeover")
    second.open().send(b"two\n")
    second.until(b"two\r\ntwo\r\n")
    first.until(b"two\r\ntwo\r\n")
    assert first.told[-1]["controls"] is False
    for screen in (first, second):
        screen.cut()
    terminal.kill()


def test_a_reader_views_and_does_not_control_and_a_stranger_finds_nothing(
    server: Running, key: str, sandbox: Sandbox
) -> None:
    terminal = sandbox.terminals.create("echo shown; cat")
    server.share(server.project("typist"), "onlooker", Role.READ)
    reader = server.key("onlooker")
    viewer = Screen(server.url, reader, sandbox.id, terminal.id, mode="view")
    viewer.until(b"shown\r\n")
    viewer.cut()
    for who, status, code in ((reader, 403, "PERMISSION_DENIED"), (server.key("nobody"), 404, "SANDBOX_NOT_FOUND")):
        with pytest.raises(InvalidStatus) as refused:
            Screen(server.url, who, sandbox.id, terminal.id).open()
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"{}")["code"] == code
    terminal.kill()


@pytest.mark.parametrize("query", ["1?since=abc", "1?since=-5", "1?mode=own", "1?cols=0&rows=1", "first"])
def test_what_cannot_be_asked_for_is_refused_like_a_request(
    server: Running, key: str, sandbox: Sandbox, query: str
) -> None:
    url = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{sandbox.id}/terminals/{query}"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers={"Authorization": f"Bearer {key}"}, proxy=None)
    assert refused.value.response.status_code == 400
    assert json.loads(refused.value.response.body or b"{}")["code"] == "INVALID_ARGUMENT"


def test_who_controls_and_who_may_not_is_in_the_audit(server: Running, key: str, sandbox: Sandbox) -> None:
    terminal = sandbox.terminals.create("cat")
    server.share(server.project("typist"), "onlooker", Role.READ)
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    screen.open().send(b"x\n")
    screen.until(b"x\r\n")
    screen.cut()
    with pytest.raises(InvalidStatus):
        Screen(server.url, server.key("onlooker"), sandbox.id, terminal.id).open()
    found = {
        (entry.actor, entry.outcome)
        for entry in server.call(lambda: server.context.store.audit.before(None))
        if entry.action == "sandbox.write"
        and entry.target.startswith(f"sandbox {sandbox.id}")
        and "terminals" in entry.operation
    }
    assert {("user:typist", "ok"), ("user:onlooker", "PERMISSION_DENIED")} <= found
    terminal.kill()


def test_a_process_is_streamed_with_both_its_streams(server: Running, key: str, sandbox: Sandbox) -> None:
    made = sandbox.processes.spawn("read line; echo out $line; echo err >&2; exit 4", stdin=True)
    path = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{sandbox.id}/processes/{made.id}"
    got: dict[int, bytes] = {1: b"", 2: b""}
    with connect(path, additional_headers={"Authorization": f"Bearer {key}"}, compression=None, proxy=None) as opened:
        opened.send(b"in\n")
        for message in opened:
            if isinstance(message, str):
                assert json.loads(message)["exit_code"] == 4
                break
            number, offset = HEAD.unpack(message[: HEAD.size])
            assert offset == len(got[number])
            got[number] += message[9:]
    assert got == {1: b"out in\n", 2: b"err\n"}


def test_input_by_requests_and_by_sockets_arrives_all(server: Running, key: str, sandbox: Sandbox) -> None:
    made = sandbox.processes.spawn("cat > got", stdin=True)
    path = f"/v1/sandboxes/{sandbox.id}/processes/{made.id}"
    url, headers = f"ws{server.url.removeprefix('http')}{path}", {"Authorization": f"Bearer {key}"}

    def post(data: str, close: bool = False) -> None:
        client.post(f"{path}/stdin", json={"data": data, "close": close}).raise_for_status()

    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        post("1")
        with connect(url, additional_headers=headers, compression=None, proxy=None) as first:
            first.send(b"2")
            wait_for(sandbox, b"12")
            post("3")
            with connect(url, additional_headers=headers, compression=None, proxy=None) as second:
                second.send(b"4")
                wait_for(sandbox, b"1234")
                first.send(b"5")
                wait_for(sandbox, b"12345")
                post("6")
        post("7", close=True)
    made.wait()
    assert sandbox.files.read("got") == b"1234567"


def wait_for(sandbox: Sandbox, content: bytes) -> None:
    end = time.monotonic() + 20
    while (got := sandbox.files.read("got")) != content:
        assert time.monotonic() < end, got
        time.sleep(0.02)


def test_input_of_requests_at_the_same_time_arrives_all(server: Running, key: str, sandbox: Sandbox) -> None:
    """None of them has a handle to the process yet."""
    lines = [f"{number:08}" for number in range(16)]
    for _ in range(5):
        made = sandbox.processes.spawn("cat > got", stdin=True)
        path = f"/v1/sandboxes/{sandbox.id}/processes/{made.id}/stdin"
        headers = {"Authorization": f"Bearer {key}"}
        with (
            httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client,
            ThreadPoolExecutor(16) as threads,
        ):
            for answer in threads.map(lambda line: client.post(path, json={"data": f"{line}\n"}), lines):  # noqa: B023
                answer.raise_for_status()
            client.post(path, json={"close": True}).raise_for_status()
        made.wait()
        assert sorted(sandbox.files.read("got").decode().split()) == lines


@pytest.mark.parametrize(
    "message", ["[]", "nonsense", '{"type": "ack"}', '{"type": "ack", "offset": "1"}', "{}", "x" * 5000]
)
def test_nonsense_ends_the_socket_with_a_reason(server: Running, key: str, sandbox: Sandbox, message: str) -> None:
    terminal = sandbox.terminals.create("cat")
    screen = Screen(server.url, key, sandbox.id, terminal.id)
    opened = screen.open()
    opened.send(message)
    assert closed_with(opened) == 4400
    terminal.kill()
