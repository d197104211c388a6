"""Files and directories in and out of a real agent: the same on both sides, complete or not there at all."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from skerry import (
    AlreadyExists,
    AsyncSandbox,
    Conflict,
    ConnectionLost,
    DiskFull,
    FileMissing,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    Skipped,
)
from skerry.sdk.files.files import AsyncFiles
from skerry.trees.pack import Packer
from skerry.trees.unpack import Unpacker
from tests.agent.driver.trees import look
from tests.sdk.agent_provider import AgentProvider


@pytest.fixture
async def provider() -> AgentProvider:
    return AgentProvider()


@pytest.fixture
async def box(provider: AgentProvider) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(provider)
    yield sandbox
    await sandbox.destroy()


@pytest.fixture
def work(box: AsyncSandbox, provider: AgentProvider) -> Path:
    return provider.boxes[box.id].directory / "work"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/deep").write_bytes(b"deep")
    (top / "big").write_bytes(os.urandom(700_001))
    (top / "empty").write_bytes(b"")
    (top / "script").write_bytes(b"#!/bin/sh\n")
    (top / "script").chmod(0o751)
    os.symlink("nowhere", top / "dangling")
    os.symlink("/etc", top / "a/etc")
    os.link(top / "script", top / "zz-same")
    Path(os.fsdecode(os.fsencode(top) + b"/\xff\xfe name\n")).write_bytes(b"odd")
    with (top / "sparse").open("wb") as out:
        out.seek(40_000_000)
        out.write(b"x" * 4096)
        out.truncate(90_000_000)
    (top / "a/b").chmod(0o555)
    for name in ("a/b", "a", "script"):
        os.utime(top / name, ns=(0, 1_234_567_890_123_456_789))
    os.utime(top, ns=(0, 999_999_999))
    return top


def leftovers(*places: Path) -> list[str]:
    return [
        name
        for place in places
        for _, directories, files in os.walk(place)
        for name in directories + files
        if ".skerry-" in name
    ]


async def gone(*places: Path) -> None:
    """What an agent removes after a stream was closed is removed soon, not at once."""
    with anyio.fail_after(20):
        while leftovers(*places):
            await anyio.sleep(0.01)


async def test_a_tree_is_the_same_inside_and_back(box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path) -> None:
    up = await box.files.upload(tree, "deep/down/here")
    assert look(work / "deep/down/here") == look(tree)
    assert (up.files, up.directories, up.links, up.skipped, up.xattrs_lost) == (7, 3, 2, (), 0)
    assert (up.info.type, up.info.path) == ("dir", str(work / "deep/down/here"))
    down = await box.files.download("deep/down/here", tmp_path / "out")
    assert look(tmp_path / "out") == look(tree)
    assert (down.files, down.directories, down.links, down.bytes) == (up.files, up.directories, up.links, up.bytes)
    for place in (work / "deep/down/here", tmp_path / "out"):
        assert (place / "zz-same").stat().st_ino == (place / "script").stat().st_ino
        assert (place / "sparse").stat().st_blocks * 512 < 2_000_000
    assert leftovers(work, tmp_path) == []


async def test_a_directory_is_made_equal_and_a_merge_adds(box: AsyncSandbox, tree: Path, tmp_path: Path) -> None:
    (tree / "a/b").chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_bytes(b"mine")
    await box.files.upload(tree, "t")
    await box.files.download("t", out, merge=True)
    assert (out / "mine").read_bytes() == b"mine"
    assert (out / "a/b/deep").read_bytes() == b"deep"
    assert (out / "zz-same").stat().st_ino == (out / "script").stat().st_ino
    await box.files.download("t", out)
    assert look(out) == look(tree)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/new").write_bytes(b"new")
    (tmp_path / "more/script").write_bytes(b"other")
    await box.files.upload(tmp_path / "more", "t", merge=True)
    assert await box.files.read("t/new") == b"new"
    assert await box.files.read("t/script") == b"other"
    assert await box.files.read("t/zz-same") == b"#!/bin/sh\n"
    await box.files.upload(tmp_path / "more", "t")
    assert [entry.path for entry in await box.files.list("t")] == ["new", "script"]
    assert leftovers(tmp_path) == []


async def test_the_working_directory_itself_can_be_filled(box: AsyncSandbox, work: Path, tree: Path) -> None:
    (work / "before").write_bytes(b"")
    await box.files.upload(tree, ".")
    assert look(work) == look(tree)
    assert leftovers(work) == []


async def test_the_current_directory_can_be_filled(
    box: AsyncSandbox, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "before").write_bytes(b"")
    monkeypatch.chdir(here)
    await box.files.upload(tree, "t")
    await box.files.download("t", ".")
    assert sorted(os.listdir(".")) == sorted(os.listdir(tree))
    assert leftovers(here) == []


async def test_what_is_left_out_is_said(box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
    up = await box.files.upload(tree, "t", exclude=["a", "empty"])
    assert sorted((skipped.path, skipped.reason) for skipped in up.skipped) == [
        ("a", "excluded"),
        ("empty", "excluded"),
        ("pipe", "fifo"),
        ("socket", "socket"),
    ]
    os.mkfifo(work / "t/inner")
    down = await box.files.download("t", tmp_path / "out", exclude=["big"])
    assert set(down.skipped) == {Skipped(path="big", reason="excluded"), Skipped(path="inner", reason="fifo")}
    assert not (tmp_path / "out/big").exists()


async def test_holes_stay_holes_on_every_way(box: AsyncSandbox, work: Path, tmp_path: Path) -> None:
    size, piece = 30_000_000, os.urandom(100_000)
    pieces = {"hole": [], "head": [0], "tail": [size - len(piece)], "both": [0, 15_000_000], "odd": [1_234_567]}
    (tmp_path / "sparse").mkdir()
    for name, offsets in pieces.items():
        with (tmp_path / "sparse" / name).open("wb") as out:
            for offset in offsets:
                out.seek(offset)
                out.write(piece)
            out.truncate(size)
    up = await box.files.upload(tmp_path / "sparse", "up")
    await box.files.copy("up", "copied")
    down = await box.files.download("copied", tmp_path / "down")
    for name in pieces:  # each by itself too
        await box.files.upload(tmp_path / "sparse" / name, f"single/{name}")
        await box.files.copy(f"single/{name}", f"single-copied/{name}")
        await box.files.download(f"single-copied/{name}", tmp_path / f"single-{name}")
    for transfer in (up, down):
        assert len(piece) * 5 <= transfer.bytes < 2_000_000
    for name in pieces:
        for path in (work / "up" / name, work / "copied" / name, tmp_path / "down" / name, tmp_path / f"single-{name}"):
            info = path.stat()
            assert (info.st_size, info.st_blocks * 512 < 2_000_000) == (size, True), path
            assert path.read_bytes() == (tmp_path / "sparse" / name).read_bytes()


async def test_setuid_stays_inside(box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path) -> None:
    (tree / "script").chmod(0o4755)
    await box.files.upload(tree / "script", "script")
    assert (work / "script").stat().st_mode & 0o7777 == 0o4755
    await box.files.download("script", tmp_path / "got")
    assert (tmp_path / "got").stat().st_mode & 0o7777 == 0o755


async def test_progress_reaches_the_total(box: AsyncSandbox, tree: Path, tmp_path: Path) -> None:
    total = 90_000_000 + 700_001 + 4 + 10 + 3
    seen: list[tuple[int, int]] = []
    await box.files.upload(tree, "t", on_progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (total, total)
    assert all(of == total for _, of in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    seen.clear()
    await box.files.download("t", tmp_path / "out", on_progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (total, total)


async def test_the_wrong_kind_of_target_is_refused(box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path) -> None:
    await box.files.upload(tree, "t")
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(IsADirectory):
        await box.files.upload(tmp_path / "file", "t")
    with pytest.raises(NotADirectory):
        await box.files.upload(tree, "t/script")
    with pytest.raises(IsADirectory):
        await box.files.download("t/script", tree)
    with pytest.raises(NotADirectory):
        await box.files.download("t", tmp_path / "file")
    (tmp_path / "link").symlink_to(tree)
    with pytest.raises(NotADirectory):
        await box.files.download("t", tmp_path / "link")
    with pytest.raises(FileMissing):
        await box.files.download("nothing", tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        await box.files.upload(tmp_path / "nothing", "new")
    with pytest.raises(FileNotFoundError):
        await box.files.download("t", tmp_path / "no/where")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidArgument):
        await box.files.upload(tmp_path / "fifo", "new")
    with pytest.raises(InvalidArgument):
        await box.files.upload(tree, "new", exclude="a")
    assert not await box.files.exists("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "file", "link", "tree"]
    await gone(work, tmp_path)


@pytest.mark.parametrize("merge", [False, True])
async def test_a_transfer_that_is_stopped_leaves_nothing(
    box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path, merge: bool
) -> None:
    (tree / "sparse").write_bytes(os.urandom(20_000_000))

    def stop(done: int, total: int) -> None:
        if done > 5_000_000:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        await box.files.upload(tree, "t", merge=merge, on_progress=stop)
    await gone(work)
    assert merge or os.listdir(work) == []
    await box.files.upload(tree, "t")
    with pytest.raises(KeyError):
        await box.files.download("t", tmp_path / "out", merge=merge, on_progress=stop)
    assert leftovers(tmp_path) == []
    assert merge or sorted(os.listdir(tmp_path)) == ["tree"]
    transfers = (
        lambda: box.files.upload(tree, "u", merge=merge),
        lambda: box.files.download("t", tmp_path / "v", merge=merge),
    )
    for transfer in transfers:
        with anyio.move_on_after(0.01):
            await transfer()
        await gone(work, tmp_path)


async def test_a_transfer_whose_task_is_cancelled_waits_for_its_thread(
    box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain `Task.cancel`, as by `asyncio.wait_for` or Ctrl-C: the files are closed after their last use."""
    await box.files.upload(tree, "t")
    told: list[str] = []

    def slowly(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def slow(*args: Any) -> Any:
            told.append("begun")
            time.sleep(0.2)
            try:
                return plain(*args)
            finally:
                told.append("done")

        monkeypatch.setattr(kind, name, slow)

    slowly(Packer, "_flush")
    slowly(Unpacker, "feed")
    for transfer in (box.files.upload(tree, "u"), box.files.download("t", tmp_path / "v")):
        told.clear()
        task = asyncio.ensure_future(transfer)
        while not told:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == ["begun", "done"]
        await gone(work, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """Mounts a file system of 2 MB at a path; unmounted at the end."""
    mounted: list[Path] = []

    def mount(place: Path) -> None:
        place.mkdir(exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place]).returncode:
            pytest.skip("a tmpfs cannot be mounted here")
        mounted.append(place)

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_disk_is_said_on_both_sides(
    box: AsyncSandbox, work: Path, tree: Path, tmp_path: Path, small_disk: Any
) -> None:
    (tree / "sparse").write_bytes(os.urandom(5_000_000))
    small_disk(work / "disk")
    small_disk(tmp_path / "disk")
    for target in ("disk/t", "disk"):
        with pytest.raises(DiskFull):
            await box.files.upload(tree, target)
        assert os.listdir(work / "disk") == []
    await box.files.upload(tree, "t")
    for place in (tmp_path / "disk/t", tmp_path / "disk"):
        with pytest.raises(OSError, match="space") as caught:
            await box.files.download("t", place)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path / "disk") == []


async def test_several_at_once(box: AsyncSandbox, tree: Path, tmp_path: Path) -> None:
    up = await box.files.upload_all([(tree, "one"), (tree / "script", "two")])
    assert [transfer.files for transfer in up] == [7, 1]
    down = await box.files.download_all([("one", tmp_path / "one"), ("two", tmp_path / "two")])
    assert [transfer.info.type for transfer in down] == ["dir", "file"]
    assert look(tmp_path / "one") == look(tree)


async def test_copy_and_hash(box: AsyncSandbox, work: Path, tree: Path) -> None:
    await box.files.upload(tree, "t")
    copied = await box.files.copy("t", "u/v")
    assert (copied.type, look(work / "u/v")) == ("dir", look(tree))
    assert await box.files.hash("t") == await box.files.hash("u/v")
    await box.files.write("u/v/a/new", b"")
    assert await box.files.hash("t") != await box.files.hash("u/v")
    with pytest.raises(AlreadyExists):
        await box.files.copy("t", "u/v")
    with pytest.raises(AlreadyExists):
        await box.files.copy("t/script", "t/big", overwrite=False)
    with pytest.raises(InvalidArgument):
        await box.files.copy("t", "t/a/inside")


async def test_if_match_guards_a_write(box: AsyncSandbox) -> None:
    first = await box.files.write("f", b"1", if_match="")
    second = await box.files.write("f", b"2", if_match=first.etag)
    with pytest.raises(Conflict):
        await box.files.write("f", b"3", if_match=first.etag)
    with pytest.raises(Conflict):
        await box.files.write("f", b"3", if_match="")
    assert (await box.files.stat("f")).etag == second.etag


async def test_an_upload_goes_on_where_it_was_cut(box: AsyncSandbox, work: Path, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(8_000_000))
    source.chmod(0o640)

    def stop(done: int, total: int) -> None:
        if done > 4_000_000:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        await box.files.upload(source, "large", resume=True, on_progress=stop)
    (part,) = leftovers(work)
    with anyio.fail_after(20):
        while (work / part).stat().st_size < 1_000_000:
            await anyio.sleep(0.01)
    seen: list[int] = []
    done = await box.files.upload(source, "large", resume=True, on_progress=lambda at, _: seen.append(at))
    assert seen[0] > 2_000_000, "it began anew"
    assert (work / "large").read_bytes() == source.read_bytes()
    assert (done.info.mode, done.bytes) == (0o640, 8_000_000)
    assert os.listdir(work) == ["large"]


async def test_a_changed_source_starts_anew(box: AsyncSandbox, work: Path, tmp_path: Path) -> None:
    source = tmp_path / "large"

    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    for change in ("source", "part"):
        source.write_bytes(os.urandom(4_000_000))
        with pytest.raises(KeyError):
            await box.files.upload(source, "large", resume=True, on_progress=stop)
        if change == "source":
            source.write_bytes(os.urandom(4_000_001))
        else:
            (part,) = leftovers(work)
            (work / part).write_bytes(b"something else")
        await box.files.upload(source, "large", resume=True)
        assert (work / "large").read_bytes() == source.read_bytes()
        assert os.listdir(work) == ["large"]


@pytest.mark.parametrize("when", ["before the last look", "after the last look"])
async def test_a_part_that_grows_meanwhile_is_not_gone_on_with(
    box: AsyncSandbox, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(4_000_000))

    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        await box.files.upload(source, "large", resume=True, on_progress=stop)
    (part,) = leftovers(work)
    with anyio.fail_after(20):
        while not (work / part).stat().st_size:
            await anyio.sleep(0.01)
    grown: list[str] = []
    ask = AsyncFiles.hash if when == "before the last look" else AsyncFiles.append

    async def meanwhile(files: AsyncFiles, *arguments: Any, **options: Any) -> Any:
        """Somebody else goes on with the same part: just before it is asked for, or while it is appended to."""
        if not grown:
            grown.append(part)
            with (work / part).open("ab") as other:
                other.write(source.read_bytes()[other.tell() :][:100_000])
        return await ask(files, *arguments, **options)

    monkeypatch.setattr(AsyncFiles, ask.__name__, meanwhile)
    await box.files.upload(source, "large", resume=True)
    assert grown
    assert (work / "large").read_bytes() == source.read_bytes()
    assert os.listdir(work) == ["large"]


async def test_two_uploads_of_one_file_at_once_leave_it_whole(box: AsyncSandbox, work: Path, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(6_000_000))
    placed: list[Any] = []

    async def upload() -> None:
        try:
            placed.append(await box.files.upload(source, "large", resume=True))
        except Conflict:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(upload)
        await anyio.sleep(0.005)
        group.start_soon(upload)
    assert placed
    assert (work / "large").read_bytes() == source.read_bytes()


async def test_a_resumed_upload_dials_again_by_itself(
    box: AsyncSandbox, provider: AgentProvider, work: Path, tmp_path: Path
) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(6_000_000))
    cut = []

    def cut_once(done: int, total: int) -> None:
        if not cut:
            cut.append(done)
            for session in list(box.files._link._sessions.values()):
                session.end(ConnectionLost("cut by the test"))

    await box.files.upload(source, "large", resume=True, on_progress=cut_once)
    assert cut
    assert (work / "large").read_bytes() == source.read_bytes()
    assert os.listdir(work) == ["large"]
