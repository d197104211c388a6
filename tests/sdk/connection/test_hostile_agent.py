"""An agent that lies, floods, stalls or breaks the protocol ends its own session, and nothing else."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from dataclasses import replace

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    ConnectionLost,
    Corrupted,
    FileMissing,
    SandboxFailed,
    SandboxNotFound,
    State,
    Unauthenticated,
    Unsupported,
)
from skerry.sdk.commands import exchange
from skerry.wire import (
    END,
    FINAL,
    Count,
    Exit,
    FileInfoMessage,
    Hello,
    ProcessEntry,
    ReadDone,
    Type,
    credit_frame,
    data_frame,
    encode_field,
    encode_frame,
)
from tests.sdk.fake_agent import Connection, FakeProvider, ends, exited, failure, polite, reply, started

WINDOW = 256 * 1024


def answering(*frames: object, then_wait: bool = True):
    """A script: greet, wait for the first request on stream 1, send these bytes, and read on."""

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(*frames)
        while then_wait:
            await connection.frame()

    return script


BROKEN = {
    "data beyond the credit": [started(1), data_frame(1, 1, 0, bytes(WINDOW + 1))],
    "an offset ahead": [started(1), data_frame(1, 1, 5, b"x")],
    "an offset that goes back": [started(1), data_frame(1, 1, 0, b"abc"), data_frame(1, 1, 1, b"x")],
    "an offset of 2**64 - 1": [started(1), data_frame(1, 1, 2**64 - 1, b"x")],
    "data on another channel": [started(1), data_frame(1, 0, 0, b"x")],
    "data on channel 15": [started(1), data_frame(1, 15, 0, b"x")],
    "data before the start": [data_frame(1, 1, 0, b"x")],
    "data after the end": [started(1), data_frame(1, 1, 0, b"", end=True), data_frame(1, 1, 0, b"x")],
    "data without bytes": [started(1), data_frame(1, 1, 0, b"")],
    "data without an offset": [started(1), encode_frame(1, Type.DATA, b"abc", 1)],
    "a stream never opened": [encode_frame(99, Type.REPLY, b"", FINAL)],
    "a length of 4 GB": [struct.pack("<IIBBH", 2**32 - 1, 1, Type.DATA, 1, 0)],
    "a length just above": [struct.pack("<IIBBH", (1 << 20) + 1, 1, Type.DATA, 1, 0)],
    "an unknown error code": [failure(1, "SOMETHING_ELSE")],
    "an error without a code": [encode_frame(1, Type.ERROR, b"")],
    "a cut field": [encode_frame(1, Type.REPLY, b"\x01\xff\xff\xff\xff", 0)],
    "an integer of 4 bytes": [encode_frame(1, Type.REPLY, encode_field(1, b"abcd"), 0)],
    "an opener from the agent": [encode_frame(1, Type.START, b"")],
    "an unknown frame type": [encode_frame(1, 0x77, b"")],
    "a second HELLO": [encode_frame(0, Type.HELLO, Hello(generation=1).encode())],
    "a PING of 65 bytes": [encode_frame(0, Type.PING, bytes(65))],
    "DATA on stream 0": [data_frame(0, 1, 0, b"x")],
    "an error on stream 0": [failure(0, "IO_ERROR")],
    "an exit without a start": [exited(1)],
    "two starts": [started(1), started(1)],
    "a third reply": [started(1), started(1), exited(1)],
    "an exit without a code": [started(1), ends(1), exited(1, None)],
    "an exit code of 256": [started(1), ends(1), exited(1, 256)],
    "an exit code of -1": [started(1), ends(1), exited(1, -1)],
    "a code with a signal": [started(1), ends(1), exited(1, 0, signal=9)],
    "a signal of 0": [started(1), ends(1), exited(1, None, status="signaled", signal=0)],
    "signaled without a signal": [started(1), ends(1), exited(1, None, status="signaled")],
    "timed out with a code": [started(1), ends(1), exited(1, 0, status="timed_out")],
    "still running": [started(1), ends(1), exited(1, None, status="running")],
    "an unknown status": [started(1), ends(1), exited(1, 0, status="fine")],
    "a negative duration": [started(1), ends(1), exited(1, 0, duration_us=-1)],
    "fewer bytes than sent": [started(1), data_frame(1, 1, 0, b"abc"), exited(1, 0, out=2)],
    "credit for no input": [started(1), credit_frame(1, 0, 10)],
    "credit of 3 bytes": [started(1), encode_frame(1, Type.CREDIT, b"abc")],
}


@pytest.mark.parametrize("what", BROKEN)
async def test_exec_ends_with_corrupted_after(what: str, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(*BROKEN[what])
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.exec("true")
    fake.script = polite
    assert (await sandbox.exec("again")).stdout == "again", "a new connection must work"


async def test_one_broken_stream_ends_the_others(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        second = await connection.opened()
        await connection.raw(started(1), started(second.stream), data_frame(second.stream, 1, 7, b"x"))
        await connection.frame()

    fake.script = script
    caught: list[Exception] = []

    async def run() -> None:
        try:
            await sandbox.exec("true")
        except Corrupted as error:
            caught.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(run)
    assert len(caught) == 2


@pytest.mark.parametrize("generation", [0, -1])
async def test_a_generation_that_does_not_exist_is_refused(
    generation: int, fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet(generation)
        await connection.frame()

    fake.script = script
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.exec("true")


async def test_a_newer_generation_is_spoken_to(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet(7)
        await connection.opened()
        await connection.raw(started(1), ends(1), exited(1))
        await connection.frame()

    fake.script = script
    assert (await sandbox.exec("true")).ok


async def test_anything_but_a_greeting_first_is_refused(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.frame()
        await connection.raw(started(1))

    fake.script = script
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.exec("true")


async def test_a_refused_token_is_unauthenticated(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.frame()
        await connection.raw(failure(0, "UNAUTHENTICATED", "wrong token"))

    fake.script = script
    with anyio.fail_after(5), pytest.raises(Unauthenticated):
        await sandbox.exec("true")


async def test_an_error_of_the_agent_leaves_the_connection(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(failure(1, "FILE_NOT_FOUND", "no such file"))
        await connection.opened()
        await connection.raw(failure(2, "UNSUPPORTED", "what?"))
        await connection.frame()

    fake.script = script
    with pytest.raises(FileMissing, match="no such file"):
        await sandbox.files.stat("/x")
    with pytest.raises(Unsupported):
        await sandbox.files.stat("/x")
    assert fake.dials == 1


async def test_half_a_frame_and_the_end_is_a_lost_connection(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(started(1)[:7], then_wait=False)
    with anyio.fail_after(5), pytest.raises(ConnectionLost, match="middle of a frame"):
        await sandbox.exec("true")


async def test_half_a_greeting_and_the_end_is_a_lost_connection(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.frame()
        await connection.raw(encode_frame(0, Type.HELLO, Hello(generation=1).encode())[:7])

    fake.script = script
    with anyio.fail_after(5), pytest.raises(ConnectionLost, match="middle of a frame"):
        await sandbox.exec("true")


async def test_answers_come_behind_the_greeting_in_one_piece(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.opened()
        greeting = encode_frame(0, Type.HELLO, Hello(generation=1).encode())
        data = greeting + started(1) + ends(1) + exited(1)
        await connection.raw(data[:5])
        await anyio.sleep(0.05)
        await connection.raw(data[5:])
        await connection.frame()

    fake.script = script
    with anyio.fail_after(5):
        assert (await sandbox.exec("true")).ok


async def test_an_end_asks_the_provider_what_happened(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(started(1), then_wait=False)
    with anyio.fail_after(5), pytest.raises(ConnectionLost):
        await sandbox.exec("true")
    info = fake.sandboxes[sandbox.id]
    fake.sandboxes[sandbox.id] = replace(info, state=State.FAILED, reason="the runtime died")
    with anyio.fail_after(5), pytest.raises(SandboxFailed, match="the runtime died") as failed:
        await sandbox.exec("true")
    assert isinstance(failed.value.__cause__, ConnectionLost)

    async def vanish(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        del fake.sandboxes[sandbox.id]

    fake.script = vanish
    with anyio.fail_after(5), pytest.raises(SandboxNotFound) as gone:
        await sandbox.exec("true")
    assert isinstance(gone.value.__cause__, ConnectionLost)


async def test_exec_does_not_wait_for_an_agent_that_lets_the_timeout_pass(
    fake: FakeProvider, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "GRACE", 0.1)
    fake.script = answering(started(1))
    with anyio.fail_after(5), pytest.raises(ConnectionLost, match="in time"):
        await sandbox.exec("true", timeout=0.1)


async def test_a_flood_that_never_ends_does_not_outlast_the_timeout(
    fake: FakeProvider, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "GRACE", 0.1)

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        offset = 0
        while True:
            await connection.raw(data_frame(1, 1, offset, bytes(WINDOW // 2)))
            offset += WINDOW // 2
            if offset >= WINDOW:
                await connection.frame(Type.CREDIT)

    fake.script = script
    with anyio.fail_after(10), pytest.raises(ConnectionLost, match="in time"):
        await sandbox.exec("true", timeout=0.2)


async def test_pings_without_reading_the_pongs_end_the_session(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        while True:
            await connection.raw(encode_frame(0, Type.PING, bytes(64)) * 1000)

    fake.script = script
    with anyio.fail_after(20), pytest.raises(Corrupted, match="PING"):
        await sandbox.exec("true")


async def test_a_ping_is_answered(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(encode_frame(0, Type.PING, b"are you there"))
        pong = await connection.frame(Type.PONG)
        assert pong.payload == b"are you there"
        await connection.raw(started(1), ends(1), exited(1))
        await connection.frame()

    fake.script = script
    assert (await sandbox.exec("true")).ok


def entry(id: int, **changes: object) -> ProcessEntry:
    base = ProcessEntry(id=id, pid=id, started_ms=0, status="running", stdout_bytes=0, stderr_bytes=0)
    return replace(base, **changes)


@pytest.mark.parametrize(
    "frames",
    [
        [reply(1, entry(i), final=False) for i in range(1100)],
        [reply(1, entry(i, argv=(bytes(900_000),)), final=False) for i in range(20)],
        [reply(1, entry(1, status="exited"), final=False)],
        [reply(1, entry(1, status="exited", exit_code=999), final=False)],
        [reply(1, entry(1, status="dancing"), final=False)],
        [reply(1, entry(1, stdout_bytes=-1), final=False)],
        [data_frame(1, 0, 0, b"x")],
    ],
    ids=["too many", "too large", "no code", "code 999", "unknown status", "negative", "data"],
)
async def test_a_list_of_processes_that_cannot_be_is_refused(
    frames: list[bytes], fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        for frame in frames:
            await connection.raw(frame)
        await connection.frame()

    fake.script = script
    with anyio.fail_after(10), pytest.raises(Corrupted):
        await sandbox.processes.list()


INFO = FileInfoMessage(path=b"f", type_name="file", size=3, mode=0o644, uid=0, gid=0, mtime_ns=1, inode=1)
WHOLE = (data_frame(1, 0, 0, b"abc", end=True), reply(1, ReadDone(bytes_read=3)))


@pytest.mark.parametrize(
    "frames",
    [
        [reply(1, INFO, final=False), data_frame(1, 0, 0, b"abc", end=True), reply(1, ReadDone(bytes_read=4))],
        [reply(1, INFO, final=False), data_frame(1, 0, 0, b"abc"), reply(1, ReadDone(bytes_read=3))],
        [reply(1, replace(INFO, type_name="ghost"), final=False)],
        [reply(1, replace(INFO, size=-1), final=False)],
        [reply(1, replace(INFO, mode=0o777777), final=False)],
        [reply(1, replace(INFO, etag="1\r\nset-cookie: a=b"), final=False), *WHOLE],
        [reply(1, replace(INFO, etag='1", "2'), final=False), *WHOLE],
        [reply(1, INFO)],
        [data_frame(1, 0, 0, b"abc")],
    ],
    ids=["count", "no end", "type", "size", "mode", "two headers", "two etags", "final at once", "no info"],
)
async def test_a_file_that_is_not_what_it_says_is_refused(
    frames: list[bytes], fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    fake.script = answering(*frames)
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.files.read("f")


@pytest.mark.parametrize(
    "data",
    [b"\x01", struct.pack("<I", 100) + b"abc", struct.pack("<I", 4) + b"abcd"],
    ids=["cut length", "cut entry", "no fields"],
)
async def test_a_malformed_directory_is_refused(data: bytes, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(data_frame(1, 0, 0, data, end=True), reply(1, Count(count=1)))
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.files.list("/")


async def test_a_wrong_count_of_entries_is_refused(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    packed = INFO.encode()
    data = struct.pack("<I", len(packed)) + packed
    fake.script = answering(data_frame(1, 0, 0, data, end=True), reply(1, Count(count=2)))
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.files.list("/")


async def test_tiny_frames_cost_no_more_than_large_ones(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    """40,000 frames of one byte, alternating, while nobody reads."""
    sent = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1))
        for start in range(0, 20_000, 1000):
            await connection.raw(
                *(data_frame(1, channel, i, b"x") for i in range(start, start + 1000) for channel in (1, 2))
            )
        await connection.raw(ends(1, 20_000, 20_000), exited(1, out=20_000, err=20_000))
        sent.set()
        await connection.frame()

    fake.script = script
    tracemalloc.start()
    try:
        async with sandbox.exec_stream("true") as stream:
            with anyio.fail_after(30):
                await sent.wait()
                await anyio.sleep(0.2)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            assert held < 4_000_000, held
            result = await stream.wait()
    finally:
        tracemalloc.stop()
    assert result.stdout_bytes == result.stderr_bytes == b"x" * 20_000


async def test_a_flood_into_a_stream_nobody_reads_ends_the_session(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = answering(started(1), *(data_frame(1, 1, i * 65536, bytes(65536)) for i in range(5)))
    async with sandbox.exec_stream("true") as stream:
        with anyio.fail_after(5):
            while fake.agents and stream.is_attached:
                await anyio.sleep(0.01)
            with pytest.raises(Corrupted, match="granted"):
                await stream.wait()


async def test_frames_on_a_stream_that_has_ended_are_dropped(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), ends(1), exited(1), data_frame(1, 1, 0, b"late"), exited(1, 3))
        second = await connection.opened()
        await connection.raw(started(second.stream), ends(second.stream), exited(second.stream, 7))
        await connection.frame()

    fake.script = script
    assert (await sandbox.exec("one")).exit_code == 0
    assert (await sandbox.exec("two")).exit_code == 7
    assert fake.dials == 1


def test_the_flags_of_data_and_replies_are_the_same_bit() -> None:
    assert END == FINAL
    assert Exit.type is None
