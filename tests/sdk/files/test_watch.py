"""Watching from Python: a real sandbox, and agents that lie."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    AsyncWatch,
    Corrupted,
    FileEvent,
    FileEventKind,
    FileMissing,
    InvalidArgument,
    QuotaExceeded,
    Sandbox,
    SandboxNotFound,
)
from skerry.wire import Change, Count, Type, Watching, data_frame, encode_field
from tests.sdk.fake_agent import Connection, FakeProvider, failure, polite, reply


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create()
    with anyio.fail_after(90):
        yield sandbox
    await sandbox.destroy()


async def until(watch: AsyncWatch, kind: str, path: str) -> list[FileEvent]:
    found = []
    async for event in watch:
        if (event.kind, event.path) == (kind, path):
            return found
        found.append(event)
    raise AssertionError(f"the watch ended before {path} was {kind}")


async def test_changes_after_the_block_is_entered_are_seen_in_order(box: AsyncSandbox) -> None:
    await box.files.mkdir("a/b")
    async with box.files.watch() as watch:
        await box.exec("mkdir a/c && echo x > a/b/f && mv a/b/f a/g && rm a/g && : > end", check=True)
        events = await until(watch, "created", "end")
    kinds = [(event.kind, event.path, event.old_path, event.is_dir) for event in events]
    assert kinds == [
        (FileEventKind.CREATED, "a/c", None, True),
        (FileEventKind.CREATED, "a/b/f", None, False),
        (FileEventKind.MODIFIED, "a/b/f", None, False),
        (FileEventKind.RENAMED, "a/g", "a/b/f", False),
        (FileEventKind.REMOVED, "a/g", None, False),
    ]


async def test_it_ends_with_its_path_and_after_close(box: AsyncSandbox) -> None:
    await box.files.mkdir("dir")
    async with box.files.watch("dir", recursive=False) as watch:
        await box.files.remove("dir")
        assert [event.kind async for event in watch] == [FileEventKind.REMOVED]
    watch = box.files.watch()
    async with watch:
        waiting = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0)
    assert await waiting is None
    assert await anext(watch, None) is None


async def test_what_cannot_be_watched_is_an_error_where_it_begins(box: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument):
        box.files.watch("")
    with pytest.raises(FileMissing):
        async with box.files.watch("nowhere"):
            pass
    watches = [box.files.watch() for _ in range(32)]
    for watch in watches:
        await watch.__aenter__()
    assert await box.files.read_text("/etc/hostname", user="root")  # watches take nothing from other requests
    with pytest.raises(QuotaExceeded):
        await anext(box.files.watch())
    for watch in watches:
        await watch.aclose()
    async with box.files.watch():
        pass


async def test_a_watch_ends_with_its_sandbox(box: AsyncSandbox) -> None:
    async with box.files.watch() as watch:
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        await box.destroy()
        with pytest.raises(SandboxNotFound):
            await waiting


HOARD = """
import ctypes, sys
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init() >= 0:
    count += 1
print(count, flush=True)
sys.stdin.read()
"""


async def test_a_sandbox_that_hoards_inotify_instances_takes_them_from_itself_alone(box: AsyncSandbox) -> None:
    hoarder = await box.processes.spawn(["python3", "-c", HOARD], sudo=True, stdin=True)
    assert 0 < int((await anext(aiter(hoarder))).data) <= 128
    with pytest.raises(QuotaExceeded):
        await anext(box.files.watch())
    async with await AsyncSandbox.create() as other, other.files.watch() as watch:
        await other.files.write("new", "x")
        assert await anext(watch)
    await hoarder.close_stdin()
    await hoarder.wait()
    async with box.files.watch():
        pass


def test_blocking_code_watches_too() -> None:
    with Sandbox.create() as sandbox, sandbox.files.watch() as watch:
        sandbox.files.write("new", "x")
        assert any(event.path == "new" for event in watch)


def event(**fields: object) -> bytes:
    payload = Change(**({"kind": "created", "path": b"x"} | fields)).encode()  # type: ignore[arg-type]
    return struct.pack("<I", len(payload)) + payload


BEGUN = reply(1, Watching(directories=1), final=False)
BROKEN = {
    "no beginning": [data_frame(1, 0, 0, event())],
    "a final beginning": [reply(1, Watching(directories=1))],
    "negative directories": [reply(1, Watching(directories=-1), final=False)],
    "an unknown kind": [BEGUN, data_frame(1, 0, 0, event(kind="eaten"))],
    "an unknown type": [BEGUN, data_frame(1, 0, 0, event(type_name="socket"))],
    "an absolute path": [BEGUN, data_frame(1, 0, 0, event(path=b"/etc/passwd"))],
    "a path that leaves": [BEGUN, data_frame(1, 0, 0, event(path=b"../../etc/passwd"))],
    "a NUL in a path": [BEGUN, data_frame(1, 0, 0, event(path=b"a\0b"))],
    "a rename from nowhere": [BEGUN, data_frame(1, 0, 0, event(kind="renamed"))],
    "a former path that leaves": [BEGUN, data_frame(1, 0, 0, event(kind="renamed", source=b".."))],
    "a former path of something new": [BEGUN, data_frame(1, 0, 0, event(source=b"y"))],
    "a cut event": [BEGUN, data_frame(1, 0, 0, event()[:-1])],
    "a cut length": [BEGUN, data_frame(1, 0, 0, b"\1\0")],
    "an event without a kind": [BEGUN, data_frame(1, 0, 0, struct.pack("<I", 6) + encode_field(2, b"x"))],
    "another beginning": [BEGUN, BEGUN],
    "fewer events than it says": [BEGUN, data_frame(1, 0, 0, event()), reply(1, Count(count=2))],
    "more than was granted": [BEGUN, data_frame(1, 0, 0, event() * 20_000)],
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_watch_ends_with_corrupted_after(what: str, fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened(Type.WATCH)
        await connection.raw(*BROKEN[what])
        while True:
            await connection.frame()

    fake.script = script
    with anyio.fail_after(5), pytest.raises(Corrupted):
        async for _ in sandbox.files.watch():
            pass
    fake.script = polite
    assert (await sandbox.exec("again")).stdout == "again"


async def test_an_error_comes_after_the_events_before_it(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()
        await connection.opened(Type.WATCH)
        await connection.raw(BEGUN, data_frame(1, 0, 0, event()), failure(1, "QUOTA_EXCEEDED"))
        await connection.frame()

    fake.script = script
    watch = sandbox.files.watch()
    with anyio.fail_after(5):
        assert (await anext(watch)).path == "x"
        with pytest.raises(QuotaExceeded):
            await anext(watch)
