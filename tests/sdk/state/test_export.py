"""State as a file in Python: targets, sources, keys, warnings, and options that exclude each other."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest

from examples.memory_provider import MemoryProvider
from skerry import AsyncSandbox, AsyncVolumes, Key, Sandbox, SkerryWarning, Snapshots
from skerry.core import errors
from skerry.sdk.state.export import _opened

KEY = Key(b"k" * 32)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600)
    made.exec("head -c 3000000 /dev/urandom > data", check=True)
    yield made
    made.destroy()


def same(source: Sandbox, given: object, key: Key | None = None) -> None:
    copy = Sandbox.create(import_state=given, key=key, timeout=300)  # type: ignore[arg-type]
    try:
        assert copy.files.hash("data") == source.files.hash("data")
    finally:
        copy.destroy()


def test_bytes_paths_and_streams(sandbox: Sandbox, tmp_path: Path) -> None:
    data = sandbox.export_state()
    assert data is not None
    same(sandbox, data)
    path = tmp_path / "state"
    path.write_bytes(b"replaced")
    sandbox.export_state(path, key=KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    same(sandbox, str(path), KEY)
    with path.open("wb") as file:
        assert sandbox.export_state(file) is None
    with path.open("rb") as file:
        same(sandbox, file)
    (tmp_path / "link").symlink_to("state")
    sandbox.export_state(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "state"]


def test_a_pipe_is_written_and_read_as_it_comes(sandbox: Sandbox, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=sandbox.export_state, args=(fifo,))
    writer.start()
    same(sandbox, fifo)
    writer.join()
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    sandbox.export_state("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.anyio
@pytest.mark.parametrize("opened", [False, True], ids=["nobody", "somebody idle"])
@pytest.mark.parametrize("what", ["export", "import"])
async def test_waiting_for_the_other_end_of_a_pipe_can_be_cancelled(
    sandbox: Sandbox, tmp_path: Path, what: str, opened: bool
) -> None:
    fifo, before = tmp_path / "fifo", [info.id for info in Sandbox.list()]
    os.mkfifo(fifo)
    idle = os.open(fifo, os.O_RDWR) if opened else -1
    box = await AsyncSandbox.get(sandbox.id)
    with anyio.move_on_after(1) as scope:
        if what == "export":
            await box.export_state(fifo)
        else:
            await AsyncSandbox.create(import_state=fifo)
    assert scope.cancelled_caught
    if opened:
        os.close(idle)
    assert (await box.exec("echo on")).stdout == "on\n"
    await box.close()
    assert [info.id for info in Sandbox.list()] == before
    assert not [path for path in Path("/proc/self/fd").iterdir() if os.path.realpath(path) == str(fifo)]


def test_a_file_may_have_the_longest_name_and_is_on_disk_under_it(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, flushed, fsync = tmp_path / ("\u00fc" * 127), dict[int, int](), os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        flushed[os.fstat(fd).st_ino] = os.fstat(fd).st_mtime_ns

    monkeypatch.setattr(os, "fsync", noted)
    sandbox.export_state(place)
    for path in (place, tmp_path):
        assert flushed[path.stat().st_ino] == path.stat().st_mtime_ns
    assert os.listdir(tmp_path) == [place.name]


@pytest.mark.anyio
async def test_a_file_that_was_opened_for_somebody_cancelled_is_closed() -> None:
    seen, go_on = list[str](), threading.Event()

    @contextmanager
    def slow() -> Iterator[BinaryIO]:
        seen.append("opening")
        assert go_on.wait(30)
        try:
            yield io.BytesIO()
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    async def use() -> None:
        async with _opened(slow()):
            seen.append("used")

    task = asyncio.create_task(use())
    while not seen:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["opening", "CancelledError"]


def test_a_path_that_cannot_be_is_told_and_a_failure_keeps_what_was_there(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(errors.FileMissing):
        sandbox.export_state(tmp_path / "no/such/place")
    with pytest.raises(errors.FileError):
        sandbox.export_state(tmp_path)
    with pytest.raises(errors.FileMissing):
        Sandbox.create(import_state=tmp_path / "nothing")
    for wrong in (7, object(), ["path"]):
        with pytest.raises(errors.InvalidArgument):
            sandbox.export_state(wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument):
            Sandbox.create(import_state=wrong)  # type: ignore[arg-type]
    kept = tmp_path / "kept"
    kept.write_bytes(b"before")

    def stop(done: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        sandbox.export_state(kept, on_progress=stop)
    assert (kept.read_bytes(), os.listdir(tmp_path)) == (b"before", ["kept"])


def test_progress_goes_up_to_all_of_it(sandbox: Sandbox) -> None:
    told = list[int]()
    sandbox.export_state(on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 3_000_000


def test_variables_that_anybody_can_read_are_warned_of(tmp_path: Path) -> None:
    with Sandbox.create(env={"TOKEN": "value"}, timeout=300) as sandbox:
        with pytest.warns(SkerryWarning, match="TOKEN") as warned:
            data = sandbox.export_state()
        assert data is not None
        assert [Path(warning.filename).name for warning in warned] == ["test_export.py"]
        sandbox.export_state(key=KEY)  # a warning would be an error here
        with pytest.raises(SkerryWarning):
            sandbox.export_state(tmp_path / "not-written")
        assert os.listdir(tmp_path) == []
        taken = sandbox.snapshots.create()
        with pytest.warns(SkerryWarning, match="TOKEN") as warned:
            sandbox.snapshots.export(taken)
        assert [Path(warning.filename).name for warning in warned] == ["test_export.py"]
        sandbox.snapshots.delete(taken)


async def test_the_warning_is_at_the_line_of_an_async_caller_too() -> None:
    async with await AsyncSandbox.create(env={"TOKEN": "value"}, timeout=300) as sandbox:
        with pytest.warns(SkerryWarning, match="TOKEN") as warned:
            await sandbox.export_state()
        assert [Path(warning.filename).name for warning in warned] == ["test_export.py"]


def test_a_snapshot_is_exported_by_id_name_or_info(sandbox: Sandbox, tmp_path: Path) -> None:
    taken = sandbox.snapshots.create("to-export")
    try:
        for which in (taken, taken.id, "to-export"):
            Snapshots().export(which, tmp_path / "file", key=KEY)
            assert sandbox.snapshots.export(which, io.BytesIO(), key=KEY) is None
        same(sandbox, tmp_path / "file", KEY)
    finally:
        sandbox.snapshots.delete(taken)
    with pytest.raises(errors.SnapshotNotFound):
        Snapshots().export("to-export")


def test_keys_come_from_files_variables_and_commands(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    monkeypatch.setenv("MY_KEY", KEY.hex())
    data = sandbox.export_state(key=f"file:{tmp_path}/key")
    for key in ("env:MY_KEY", f"command:cat {tmp_path}/key", KEY.secret()):
        copy = Sandbox.create(import_state=data, key=key, timeout=300)
        copy.destroy()
    for wrong in ("env:NOT_SET", "what", b"short"):
        with pytest.raises(errors.InvalidArgument):
            sandbox.export_state(key=wrong)


def test_options_that_exclude_each_other(sandbox: Sandbox) -> None:
    for options in ({"key": KEY}, {"import_state": b"", "snapshot": "x"}, {"import_state": b"", "restore_from": "x"}):
        with pytest.raises(errors.InvalidArgument):
            Sandbox.create(**options)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_provider_without_it_says_so() -> None:
    provider = MemoryProvider()
    for call, option in (
        (lambda: AsyncSandbox.create(provider, network="open", import_state=b""), "import_state"),
        (lambda: AsyncSandbox.create(provider, network="open", auto_archive=5.0), "auto_archive"),
    ):
        with pytest.raises(errors.Unsupported) as caught:
            await call()
        assert caught.value.option == option
    async with await AsyncSandbox.create(provider, network="open") as made:
        for call, option in ((made.export_state, "export_state"), (made.archive, "archive")):
            with pytest.raises(errors.Unsupported) as caught:
                await call()
            assert caught.value.option == option
    with pytest.raises(errors.Unsupported):
        AsyncVolumes(provider)
