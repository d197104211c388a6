"""Flow control, keepalive, event loops and clean-up of a session."""

from __future__ import annotations

import asyncio
import logging
import threading

import anyio
import pytest
from anyio.abc import ByteStream

from skerry import AsyncSandbox, ConnectionLost, TooLarge
from skerry.core.contract.provider import Channel
from skerry.sdk.connection import link
from skerry.sdk.connection.session import Session
from skerry.wire import (
    INPUT_WINDOW,
    Decoder,
    Empty,
    Frame,
    Hello,
    Life,
    Signal,
    Start,
    StartFlags,
    Type,
    Write,
    credit_frame,
    data_frame,
    encode_frame,
    parse_credit,
    parse_data,
)
from tests.sdk.fake_agent import Connection, FakeProvider, ends, exited, polite, reply, started

WINDOW = 256 * 1024


class Wrapped(ByteStream):
    """A byte stream that is no socket, as a WebSocket would be."""

    def __init__(self, inner: ByteStream) -> None:
        self.inner = inner

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self.inner.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self.inner.send(item)

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def aclose(self) -> None:
        await self.inner.aclose()


class WrappedProvider(FakeProvider):
    async def dial(self, sandbox_id: str, port: int = 0) -> Channel:
        channel = await super().dial(sandbox_id, port)
        return Channel(stream=Wrapped(channel.stream), token=channel.token)


@pytest.fixture(params=[FakeProvider, WrappedProvider], ids=["socket", "byte stream"])
async def fake(request: pytest.FixtureRequest):
    """Every test here holds on a socket and on any other byte stream."""
    provider = request.param()
    yield provider
    await provider.aclose()
    assert not provider.failures, provider.failures


async def test_the_agent_gets_credit_for_what_was_taken_in_halves_of_the_window(
    fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    total, credits = 4 * WINDOW, []

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        sent, allowed = 0, WINDOW
        while sent < total:
            while sent < allowed and sent < total:
                await connection.raw(data_frame(1, 1, sent, bytes(WINDOW // 4)))
                sent += WINDOW // 4
            if sent < total:
                frame = await connection.frame(Type.CREDIT)
                credits.append(parse_credit(frame.payload))
                allowed += credits[-1]
        await connection.raw(ends(1, total), exited(1, out=total))
        await connection.frame()

    fake.script = script
    with anyio.fail_after(10):
        result = await sandbox.exec("true")
    assert len(result.stdout_bytes) == total
    assert all(WINDOW // 2 <= credit <= WINDOW for credit in credits)


async def test_a_stream_nobody_reads_gives_no_credit(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    seen: list[Frame] = []
    filled = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), data_frame(1, 1, 0, bytes(WINDOW)))
        filled.set()
        with anyio.move_on_after(0.3):
            seen.append(await connection.frame())
        await connection.raw(ends(1, WINDOW), exited(1, out=WINDOW))
        await connection.frame(Type.CLOSE)

    fake.script = script
    async with sandbox.exec_stream("true") as stream:
        await filled.wait()
        await anyio.sleep(0.4)
        assert not seen
        assert len((await stream.wait()).stdout_bytes) == WINDOW


async def test_bytes_under_way_are_those_that_were_sent_whatever_becomes_of_their_buffer(
    fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    content = bytearray(b"x" * (6 << 20))
    cancelled, closed, got = anyio.Event(), anyio.Event(), bytearray()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(credit_frame(1, 0, len(content)))
        await cancelled.wait()  # until then nothing is read
        while (frame := await connection.frame(Type.DATA, Type.CLOSE)).type == Type.DATA:
            got.extend(parse_data(frame.payload)[1])
        closed.set()

    fake.script = script
    async with sandbox._link.open(Write(path=b"file")) as stream:
        with anyio.move_on_after(0.5) as scope:
            await stream.send(content)
        assert scope.cancelled_caught
        content[:] = bytes(len(content))
        cancelled.set()
        with anyio.fail_after(10):
            assert await stream.send(memoryview(content)[: 1 << 20])
        content[:] = b"y" * len(content)
    with anyio.fail_after(10):
        await closed.wait()
    zeros = got.lstrip(b"x")
    assert len(got) - len(zeros) >= 1 << 20
    assert zeros == bytes(1 << 20)


async def test_input_stops_at_the_credit_and_goes_on_with_more(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    content = bytes(range(256)) * 4096
    got = bytearray()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        allowed = INPUT_WINDOW
        while True:
            frame = await connection.frame(Type.DATA)
            offset, data = parse_data(frame.payload)
            assert offset == len(got)
            got.extend(data)
            assert len(got) <= allowed
            if frame.flags & 0x80:
                break
            if len(got) == allowed:
                await connection.raw(credit_frame(1, 0, 100_000))
                allowed += 100_000
        await connection.raw(ends(1), exited(1))
        await connection.frame()

    fake.script = script
    with anyio.fail_after(10):
        assert (await sandbox.exec("cat", stdin=content)).ok
    assert bytes(got) == content


async def test_an_exit_before_all_input_is_taken_is_a_result(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), ends(1), exited(1, 5))
        while True:
            await connection.frame()

    fake.script = script
    with anyio.fail_after(5):
        assert (await sandbox.exec("true", stdin=bytes(10 * INPUT_WINDOW))).exit_code == 5


async def test_small_input_leaves_together_with_the_request(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    received: list[bytes] = []

    async def script(connection: Connection) -> None:
        received.append(await connection.stream.receive())
        await connection.raw(encode_frame(0, Type.HELLO, Hello(generation=1).encode()))
        await connection.raw(started(1), ends(1), exited(1))
        await connection.frame()

    fake.script = script
    await sandbox.exec("cat", stdin="hello")
    assert [frame.type for frame in Decoder().feed(received[0])] == [Type.HELLO, Type.START, Type.DATA]


async def test_cancelling_exec_closes_the_stream_at_once(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    running, closed = anyio.Event(), anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        frame = await connection.opened()
        assert Start.decode(frame.payload).flags & StartFlags.FOREGROUND
        await connection.raw(started(1))
        running.set()
        assert (await connection.frame(Type.CLOSE)).stream == 1
        closed.set()
        await connection.opened()
        await connection.raw(started(2), ends(2), exited(2))
        await connection.frame()

    fake.script = script
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.exec, "sleep 100")
        await running.wait()
        group.cancel_scope.cancel()
    with anyio.fail_after(2):
        await closed.wait()
        assert (await sandbox.exec("true")).ok, "the connection goes on"
    assert fake.dials == 1


async def test_a_callback_that_raises_kills_the_command_and_is_raised(
    fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    closed = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), data_frame(1, 1, 0, b"hello"))
        await connection.frame(Type.CLOSE)
        closed.set()
        await connection.frame()

    def explode(text: str) -> None:
        raise KeyError(text)

    fake.script = script
    with anyio.fail_after(5):
        with pytest.raises(KeyError, match="hello"):
            await sandbox.exec("x", on_stdout=explode)
        await closed.wait()


async def test_an_input_that_raises_kills_the_command_and_is_raised(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    closed = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        await connection.frame(Type.CLOSE)
        closed.set()
        await connection.frame()

    async def broken():
        yield b"abc"
        raise KeyError("no more")

    fake.script = script
    with anyio.fail_after(5):
        with pytest.raises(KeyError):
            await sandbox.exec("x", stdin=broken())
        await closed.wait()


async def open_session(fake: FakeProvider, **options: float) -> Session:
    info = await fake.create_any()
    return Session(await fake.dial(info.id), **options)


async def test_silence_is_asked_about_and_an_answer_is_enough(fake: FakeProvider) -> None:
    pings = 0

    async def script(connection: Connection) -> None:
        nonlocal pings
        await connection.greet()
        await connection.opened()
        while pings < 4:
            await connection.frame(Type.PING)
            pings += 1
            await connection.raw(encode_frame(0, Type.PONG))
        await connection.raw(started(1), ends(1), exited(1))
        await connection.frame()

    fake.script = script
    session = await open_session(fake, ping_after=0.05, lost_after=0.5)
    stream = session.open(Start(argv=(b"x",)))
    with anyio.fail_after(5):
        for _ in range(4):
            await stream.next()
    assert pings == 4
    await session.aclose()


async def test_an_agent_that_stops_answering_is_a_lost_connection(fake: FakeProvider) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        while True:
            await connection.frame()

    fake.script = script
    session = await open_session(fake, ping_after=0.1, lost_after=0.2)
    streams = [session.open(Life()) for _ in range(3)]
    for stream in streams:
        with anyio.fail_after(5), pytest.raises(ConnectionLost, match="not answered"):
            await stream.next()
    await session.aclose()


async def test_silence_ends_the_session_though_nobody_can_say_why(fake: FakeProvider) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        while True:
            await connection.frame()

    async def excused() -> bool:
        raise OSError("the provider cannot be asked")

    fake.script = script
    info = await fake.create_any()
    session = Session(await fake.dial(info.id), ping_after=0.05, lost_after=0.1, excused=excused)
    stream = session.open(Life())
    with anyio.fail_after(5), pytest.raises(ConnectionLost, match="not answered"):
        await stream.next()
    await session.aclose()


async def test_nothing_outstanding_means_no_ping(fake: FakeProvider) -> None:
    frames: list[Frame] = []

    async def script(connection: Connection) -> None:
        await connection.greet()
        while True:
            frames.append(await connection.frame())

    fake.script = script
    session = await open_session(fake, ping_after=0.05, lost_after=0.1)
    await anyio.sleep(0.4)
    assert not frames
    assert session.error is None
    await session.aclose()


async def test_a_request_above_a_frame_is_refused_and_the_session_goes_on(
    fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    with pytest.raises(TooLarge, match="2 MiB"):
        await sandbox.exec(["x", "y" * 2_200_000])
    assert (await sandbox.exec("fine")).stdout == "fine"
    with pytest.raises(TooLarge, match="this sandbox's agent"):
        await sandbox.exec(["x", "y" * 1_100_000])  # the fake one is of the first generation
    with pytest.raises(TooLarge, match="1 MiB"):
        await sandbox.files.stat("y" * 1_100_000)
    assert (await sandbox.exec("fine")).stdout == "fine"


async def test_many_at_once_share_one_connection(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    results: dict[str, str] = {}

    async def run(text: str) -> None:
        results[text] = (await sandbox.exec(["x", text])).stdout

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for i in range(300):
                group.start_soon(run, f"{i}" * 500)
    assert len(results) == 300
    assert all(key == value for key, value in results.items())
    assert fake.dials == 1


async def test_close_ends_what_is_open_and_the_next_use_dials_again(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        await connection.frame()

    fake.script = script
    stream = sandbox.exec_stream("sleep")
    async with stream:
        await sandbox.close()
        with pytest.raises(ConnectionLost):
            await stream.wait()
    fake.script = polite
    assert (await sandbox.exec("again")).stdout == "again"
    assert fake.dials == 2


def test_a_sandbox_used_from_other_event_loops_dials_for_each() -> None:
    provider = FakeProvider()

    async def use(sandbox: AsyncSandbox) -> str:
        try:
            return (await sandbox.exec("hello")).stdout
        finally:
            await sandbox.close()

    sandbox = asyncio.run(AsyncSandbox.create(provider))
    assert asyncio.run(use(sandbox)) == "hello"
    assert asyncio.run(use(sandbox)) == "hello"
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(asyncio.run(use(sandbox))))
    thread.start()
    thread.join(10)
    assert outcome == ["hello"]
    assert provider.dials == 3


def test_a_session_left_open_in_a_closed_loop_is_let_go() -> None:
    provider = FakeProvider()

    async def use(sandbox: AsyncSandbox) -> None:
        await sandbox.exec("hello")

    sandbox = asyncio.run(AsyncSandbox.create(provider))
    asyncio.run(use(sandbox))
    asyncio.run(use(sandbox))

    async def close() -> None:
        await sandbox.close()

    asyncio.run(close())
    assert provider.dials == 2


async def test_a_request_that_is_never_answered_ends_with_an_error(
    fake: FakeProvider, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link.Link.request, "__kwdefaults__", {"guard": 0.1})

    async def script(connection: Connection) -> None:
        await connection.greet()
        while True:
            await connection.frame()

    fake.script = script
    with anyio.fail_after(5), pytest.raises(ConnectionLost, match="in time"):
        await sandbox.env.all()


async def test_log_records_say_what_and_where_but_no_contents(
    fake: FakeProvider, sandbox: AsyncSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="skerry.sandbox"):
        await sandbox.exec("echo $TOKEN", env={"TOKEN": "hunter2"}, stdin="secret input")
    records = [record for record in caplog.records if record.name.startswith("skerry")]
    assert {getattr(record, "op", None) for record in records} == {"dial", "start"}
    for record in records:
        assert record.__dict__["sandbox_id"] == sandbox.id
        assert record.__dict__["provider"] == "fake"
        assert record.__dict__["duration"] >= 0
        text = str(record.__dict__)
        assert "hunter2" not in text
        assert "secret input" not in text
        assert "echo" not in text


async def test_a_cancelled_spawn_leaves_no_process(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    signals: list[Signal] = []
    asked = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened(Type.START)
        asked.set()
        await anyio.sleep(0.2)
        await connection.raw(started(1, id=42))
        frame = await connection.opened(Type.SIGNAL)
        signals.append(Signal.decode(frame.payload))
        await connection.raw(reply(frame.stream, Empty()))
        await connection.frame()

    fake.script = script
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.processes.spawn, "sleep 1000")
            await asked.wait()
            group.cancel_scope.cancel()
    assert signals == [Signal(id=42, signal=9, scope=1)]
