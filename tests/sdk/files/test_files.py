"""Files against the real agent, run as a plain process."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

import anyio
import pytest

from skerry import (
    AlreadyExists,
    AsyncSandbox,
    FileMissing,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotAFile,
    NotEmpty,
    PermissionDenied,
)
from tests.sdk.agent_provider import AGENT, AgentProvider

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root"),
    pytest.mark.skipif(not AGENT.exists(), reason="the agent is not built: make -C agent"),
]


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(AgentProvider())
    with anyio.fail_after(90):
        yield sandbox
    await sandbox.destroy()


async def test_what_is_written_is_read(box: AsyncSandbox) -> None:
    files = box.files
    info = await files.write("deep/er/file.bin", b"\x00\xff" * 10)
    assert (info.type, info.size, info.mode, info.name) == ("file", 20, 0o644, "file.bin")
    assert await files.read("deep/er/file.bin") == b"\x00\xff" * 10
    await files.write(PurePosixPath("text"), "grüße\n", mode=0o600)
    assert await files.read_text("text") == "grüße\n"
    assert (await files.stat("text")).mode == 0o600
    await files.append("text", "more")
    await files.append("new", b"made")
    assert await files.read("text") == "grüße\nmore".encode()
    assert await files.read("new") == b"made"
    assert await files.read((await box.exec("pwd")).stdout.strip() + "/new") == b"made"
    await files.write("empty", b"")
    assert await files.read("empty") == b""


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "list", "generator", "async", "file"])
async def test_every_source_of_bytes_can_be_written(kind: str, box: AsyncSandbox) -> None:
    parts = [os.urandom(300_000) for _ in range(10)]
    whole = b"".join(parts)

    async def slowly() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    source = {
        "bytes": whole,
        "bytearray": bytearray(whole),
        "list": parts,
        "generator": (part for part in parts),
        "async": slowly(),
        "file": io.BytesIO(whole),
    }[kind]
    assert (await box.files.write("x", source)).size == len(whole)
    assert await box.files.read("x") == whole


async def test_a_source_that_fails_leaves_the_old_content(box: AsyncSandbox) -> None:
    await box.files.write("x", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield bytes(1_000_000)
        raise KeyError("no more")

    with pytest.raises(KeyError):
        await box.files.write("x", broken())
    for wrong in (["text"], 5):
        with pytest.raises(InvalidArgument):
            await box.files.write("x", wrong)  # type: ignore[arg-type]
    assert await box.files.read("x") == b"old"
    assert [entry.path for entry in await box.files.list()] == ["x"]


async def test_parts_of_a_file(box: AsyncSandbox) -> None:
    await box.files.write("x", bytes(range(256)) * 5000)
    parts = [part async for part in box.files.read_stream("x", offset=1000, length=300_000)]
    assert b"".join(parts) == (bytes(range(256)) * 5000)[1000:301_000]
    assert b"".join([part async for part in box.files.read_stream("x", offset=1_279_999)]) == b"\xff"
    async for _ in box.files.read_stream("x"):
        break
    assert (await box.exec("true")).ok


async def test_a_file_above_the_guard_is_not_read_whole(box: AsyncSandbox) -> None:
    await box.exec("truncate -s 10G huge")
    with pytest.raises(InvalidArgument) as refused:
        await box.files.read("huge", max_bytes=1_000_000)
    assert "read_stream" in refused.value.hint
    await box.files.write("exact", bytes(1000))
    assert len(await box.files.read("exact", max_bytes=1000)) == 1000


async def test_directories(box: AsyncSandbox) -> None:
    files = box.files
    await files.mkdir("a/b/c")
    await files.mkdir("a/b/c")
    with pytest.raises(AlreadyExists):
        await files.mkdir("a/b", parents=False)
    with pytest.raises(FileMissing):
        await files.mkdir("x/y", parents=False)
    await files.write("a/b/file", b"123")
    link = await files.symlink("a/link", "b/file")
    assert (link.type, link.target) == ("link", "b/file")
    assert [(entry.path, entry.type) for entry in await files.list("a")] == [("b", "dir"), ("link", "link")]
    assert [entry.path for entry in await files.list("a", depth=9)] == ["b", "b/c", "b/file", "link"]
    assert (await files.stat("a/link")).type == "file"
    assert (await files.stat("a/link", follow=False)).type == "link"
    assert await files.exists("a/link")
    assert not await files.exists("a/nothing")
    assert not await files.exists("a/b/file/below")
    with pytest.raises(NotEmpty):
        await files.remove("a")
    assert await files.remove("a", recursive=True) == 5
    with pytest.raises(FileMissing):
        await files.remove("a")
    with pytest.raises(InvalidArgument):
        await files.list(".", depth=0)


async def test_many_entries(box: AsyncSandbox) -> None:
    await box.exec("mkdir many; cd many; seq 1 3000 | xargs touch")
    assert len(await box.files.list("many")) == 3000


async def test_names_of_any_bytes(box: AsyncSandbox) -> None:
    name = b"\xff\xfe\n".decode("utf-8", "surrogateescape")
    await box.files.write(name, b"odd")
    assert [entry.path for entry in await box.files.list()] == [name]
    assert await box.files.read(name) == b"odd"


async def test_a_user_or_group_that_is_missing_is_named(box: AsyncSandbox) -> None:
    await box.files.write("a", b"1")
    for call, words in (
        (box.files.read("a", user="nobody-like-that"), "unable to find user nobody-like-that"),
        (box.files.chown("a", owner="nobody-like-that"), "unable to find user nobody-like-that"),
        (box.files.chown("a", group="none-like-that"), "unable to find group none-like-that"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            await call


async def test_rename_modes_and_owners(box: AsyncSandbox) -> None:
    files = box.files
    await files.write("a", b"1")
    await files.write("b", b"2")
    with pytest.raises(AlreadyExists):
        await files.rename("a", "b", overwrite=False)
    await files.rename("a", "b")
    assert await files.read("b") == b"1"
    assert (await files.chmod("b", 0o4711)).mode == 0o4711
    assert (await files.chown("b", owner="nobody")).owner == "nobody"
    assert (await files.chown("b", group="0")).gid == 0
    with pytest.raises(InvalidArgument):
        await files.chown("b")
    for wrong in (-1, 0o10000, "644"):
        with pytest.raises(InvalidArgument):
            await files.chmod("b", wrong)  # type: ignore[arg-type]
    with pytest.raises(AlreadyExists):
        await files.write("b", b"", overwrite=False)
    assert (await files.write("b", b"new")).uid == (await files.stat("b")).uid != 0


async def test_each_wrong_thing_has_its_own_error(box: AsyncSandbox) -> None:
    files = box.files
    await files.write("file", b"x")
    await files.mkdir("dir")
    await box.exec("mkfifo fifo; mkdir -m 700 closed; chmod 755 .")
    with pytest.raises(FileMissing):
        await files.read("nothing")
    with pytest.raises(FileMissing):
        await files.write("no/dir", b"", parents=False)
    with pytest.raises(IsADirectory):
        await files.read("dir")
    with pytest.raises(IsADirectory):
        await files.write("dir", b"")
    with pytest.raises(NotAFile):
        await files.read("fifo")
    with pytest.raises(NotADirectory):
        await files.list("file")
    with pytest.raises(NotADirectory):
        await files.write("file/below", b"")
    with pytest.raises(PermissionDenied):
        await files.list("/root", user="nobody")
    with pytest.raises(PermissionDenied):
        await files.write("/usr/new", b"", user="nobody")


async def test_upload_and_download(box: AsyncSandbox, tmp_path: Path) -> None:
    content = os.urandom(5_000_001)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    source.chmod(0o751)
    progress: list[tuple[int, int]] = []
    done = await box.files.upload(source, "up/loaded", on_progress=lambda done, total: progress.append((done, total)))
    assert (done.info.size, done.info.mode) == (len(content), 0o751)
    assert progress[-1] == (len(content), len(content))
    progress.clear()
    await box.files.download("up/loaded", target, on_progress=lambda done, total: progress.append((done, total)))
    assert target.read_bytes() == content
    assert target.stat().st_mode & 0o7777 == 0o751
    assert progress[-1] == (len(content), len(content))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


async def test_download_replaces_a_link_and_leaves_nothing_half(box: AsyncSandbox, tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("mine")
    link.symlink_to(victim)
    await box.files.write("x", b"theirs", mode=0o644)
    await box.files.chmod("x", 0o6755)
    await box.files.download("x", link)
    assert victim.read_text() == "mine"
    assert not link.is_symlink()
    assert link.read_bytes() == b"theirs"
    assert link.stat().st_mode & 0o7777 == 0o755
    with pytest.raises(FileMissing):
        await box.files.download("nothing", tmp_path / "new")
    with pytest.raises(IsADirectory):
        await box.files.download("x", tmp_path)
    with pytest.raises(FileNotFoundError):
        await box.files.download("x", tmp_path / "no/where")

    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        await box.files.download("x", tmp_path / "new", on_progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "victim"]


async def test_a_transfer_takes_constant_memory(box: AsyncSandbox, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(200_000_000)
    tracemalloc.start()
    try:
        await box.files.upload(source, "large")
        await box.files.download("large", target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert target.stat().st_size == 200_000_000
    assert peak < 30_000_000
