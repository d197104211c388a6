"""An agent that lies about a terminal ends its own session; one that floods costs no memory."""

from __future__ import annotations

import gc
import tracemalloc

import anyio
import pytest

from skerry import AsyncSandbox, Corrupted
from skerry.wire import Attached, Message, Notice, ProcessEntry, Processes, Type, data_frame, encode_field, encode_frame
from tests.sdk.fake_agent import Connection, FakeProvider, ends, exited, reply, started

ENTRY = ProcessEntry(id=1, pid=2, started_ms=1000, status="running", stdout_bytes=0, stderr_bytes=0, cols=80, rows=24)


def attached(stream: int, cols: int | None = 80, rows: int | None = 24) -> bytes:
    fields = {"id": 1, "pid": 2, "started_ms": 1000, "start_stdout": 0, "start_stderr": 0}
    return reply(stream, Attached(**fields, cols=cols, rows=rows), final=False)


def notice(message: Message) -> bytes:
    return reply(2, message, final=False)


def terminal_of(*frames: bytes, entry: ProcessEntry = ENTRY):
    """A script: a list of one process on stream 1, then these frames once stream 2 is opened."""

    async def script(connection: Connection) -> None:
        await connection.greet()
        assert (await connection.opened()).type == Processes.type
        await connection.raw(reply(1, entry, final=False), encode_frame(1, Type.REPLY, b"", 0x80))
        assert (await connection.opened()).type == Type.ATTACH
        for frame in frames:
            await connection.raw(frame)
        while True:
            await connection.frame()

    return script


BROKEN = {
    "no size": [attached(2, None, None)],
    "half a size": [attached(2, 80, None)],
    "a size of 0": [attached(2, 0, 24)],
    "a size above 10,000": [attached(2, 80, 10_001)],
    "a notice before the first reply": [notice(Notice(controls=0))],
    "a notice of half a size": [attached(2), notice(Notice(cols=5))],
    "a notice of a negative size": [attached(2), notice(Notice(cols=-5, rows=5))],
    "a notice that gives control": [attached(2), notice(Notice(controls=1))],
    "a notice of 2 KiB": [attached(2), encode_frame(2, Type.REPLY, encode_field(9, bytes(2048)))],
    "a notice that is cut": [attached(2), encode_frame(2, Type.REPLY, b"\x01\xff\xff\xff\xff")],
    "a start before what was asked for": [attached(2), data_frame(2, 1, 0, b"ab"), data_frame(2, 1, 1, b"b")],
    "data on channel 0": [attached(2), data_frame(2, 0, 0, b"x")],
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_terminal_ends_with_corrupted_after(what: str, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    fake.script = terminal_of(*BROKEN[what])
    with anyio.fail_after(5), pytest.raises(Corrupted):
        [chunk async for chunk in (await sandbox.terminals.get(1)).attach()]
    assert fake.dials == 1, "a broken agent is not asked again"


@pytest.mark.parametrize("size", [(80, None), (None, 24), (0, 24), (80, 10_001)])
async def test_a_list_with_an_impossible_size_is_corrupted(
    size: tuple[int | None, int | None], fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    fields = {"id": 1, "pid": 2, "started_ms": 1000, "status": "running", "stdout_bytes": 0, "stderr_bytes": 0}
    fake.script = terminal_of(entry=ProcessEntry(**fields, cols=size[0], rows=size[1]))
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.terminals.list()


async def test_a_process_gets_no_notices(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened()
        await connection.raw(started(1), reply(1, Notice(controls=0), final=False), ends(1), exited(1))
        await connection.frame()

    fake.script = script
    with anyio.fail_after(5), pytest.raises(Corrupted):
        await sandbox.exec("true")


async def test_a_flood_of_notices_costs_no_memory_and_the_last_one_counts(
    fake: FakeProvider, sandbox: AsyncSandbox
) -> None:
    flood = b"".join(notice(Notice(cols=number % 9999 + 1, rows=5)) for number in range(20_000))
    last = notice(Notice(controls=0, cols=7, rows=8))
    fake.script = terminal_of(attached(2), *[flood] * 5, last, data_frame(2, 1, 0, b"x"))
    async with (await sandbox.terminals.get(1)).attach() as stream:
        gc.collect()
        tracemalloc.start()
        with anyio.fail_after(60):
            assert (await anext(stream)).data == b"x"
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (stream.size, stream.controls) == ((7, 8), False)
        assert held < 2_000_000
