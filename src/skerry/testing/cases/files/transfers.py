"""Transfers: whole trees in and out, complete or not at all."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from skerry.core import AlreadyExists, Conflict, FileMissing, IsADirectory, SkerryError
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance

MEGABYTE = 1_000_000


def shape(top: Path) -> dict[str, tuple[str, int, object]]:
    """What is in a tree: kind, mode and content of everything."""
    found: dict[str, tuple[str, int, object]] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = ("link", 0, os.readlink(path))
        elif path.is_dir():
            found[name] = ("dir", path.stat().st_mode & 0o777, None)
        else:
            found[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes())
    return found


class TransfersConformance(Conformance):
    """upload, download, copy, hash and guarded writes."""

    title = "transfers"

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """A small tree with all a tree can have: modes, links, hard links, empty and odd names."""
        top = tmp_path / "tree"
        (top / "sub/empty").mkdir(parents=True)
        (top / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (top / "run.sh").chmod(0o755)
        (top / "secret").write_text("s")
        (top / "secret").chmod(0o600)
        (top / "sub/data").write_bytes(bytes(range(256)) * 1000)
        (top / "sub/link").symlink_to("../run.sh")
        (top / "sub/dangling").symlink_to("/no/where")
        os.link(top / "secret", top / "sub/same")
        (top / "sub" / os.fsdecode(b"odd \xff\n")).write_text("odd")
        return top

    async def test_a_file_comes_back_as_it_was(self, sandbox: AsyncSandbox, directory: str, tmp_path: Path) -> None:
        """harbor-framework/harbor#2054: content and mode survive the way in and out."""
        (tmp_path / "in").write_bytes(os.urandom(3 * MEGABYTE + 1))
        (tmp_path / "in").chmod(0o751)
        await sandbox.files.upload(tmp_path / "in", f"{directory}/x")
        await sandbox.files.download(f"{directory}/x", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751

    async def test_a_tree_comes_back_as_it_was(
        self, sandbox: AsyncSandbox, directory: str, tree: Path, tmp_path: Path
    ) -> None:
        """harbor-framework/harbor#2054: modes, links, empty directories and odd names; nothing is lost."""
        sent = await sandbox.files.upload(tree, f"{directory}/tree")
        assert (await sandbox.exec([f"{directory}/tree/run.sh"])).stdout == "ran\n"
        got = await sandbox.files.download(f"{directory}/tree", tmp_path / "back")
        assert shape(tmp_path / "back") == shape(tree)
        assert (sent.files, sent.directories, sent.links) == (got.files, got.directories, got.links)

    async def test_hard_links_and_times_survive(self, sandbox: AsyncSandbox, directory: str, tree: Path) -> None:
        """A tree does not grow on the way, and a build does not start over because all files look new."""
        os.utime(tree / "run.sh", (1_000_000_000, 1_000_000_000))
        await sandbox.files.upload(tree, f"{directory}/tree")
        one = await sandbox.files.stat(f"{directory}/tree/secret")
        two = await sandbox.files.stat(f"{directory}/tree/sub/same")
        assert one.inode == two.inode
        assert (await sandbox.files.stat(f"{directory}/tree/run.sh")).mtime == 1_000_000_000

    async def test_what_is_no_file_is_skipped_and_named(
        self, sandbox: AsyncSandbox, directory: str, tmp_path: Path
    ) -> None:
        """harbor-framework/harbor#2054: a FIFO or a dangling link must not abort the download of a directory."""
        await sandbox.exec("mkdir t; mkfifo t/fifo; ln -s nowhere t/dangling; echo x > t/file", cwd=directory)
        got = await sandbox.files.download(f"{directory}/t", tmp_path / "t")
        assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["dangling", "file"]
        assert [(skipped.path, skipped.reason) for skipped in got.skipped] == [("fifo", "fifo")]

    async def test_many_small_files(self, sandbox: AsyncSandbox, directory: str, tmp_path: Path) -> None:
        """langchain-ai/deepagents#1402: hundreds of files go in at once, not one command line each."""
        (tmp_path / "many").mkdir()
        for number in range(300):
            (tmp_path / "many" / str(number)).write_text(str(number))
        assert (await sandbox.files.upload(tmp_path / "many", f"{directory}/many")).files == 300
        assert (await sandbox.exec("cat * | wc -c", cwd=f"{directory}/many")).stdout.strip() == "790"

    async def test_a_transfer_takes_constant_memory(
        self, sandbox: AsyncSandbox, directory: str, tmp_path: Path
    ) -> None:
        """PrimeIntellect-ai/prime#824: a large transfer must not be held in memory as a whole."""
        (tmp_path / "big").mkdir()
        (tmp_path / "big/file").write_bytes(os.urandom(MEGABYTE) * 60)
        tracemalloc.start()
        try:
            await sandbox.files.upload(tmp_path / "big", f"{directory}/big")
            await sandbox.files.download(f"{directory}/big", tmp_path / "back")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (tmp_path / "back/file").stat().st_size == 60 * MEGABYTE
        assert peak < 30 * MEGABYTE

    async def test_progress_ascends_to_the_end(self, sandbox: AsyncSandbox, directory: str, tmp_path: Path) -> None:
        """harbor-framework/harbor#2418: an upload must not be silent, so that one that is stuck can be told."""
        (tmp_path / "file").write_bytes(bytes(3 * MEGABYTE))
        seen: list[tuple[int, int]] = []
        await sandbox.files.upload(
            tmp_path / "file", f"{directory}/x", on_progress=lambda done, total: seen.append((done, total))
        )
        assert len(seen) > 2
        assert seen == sorted(seen)
        assert seen[-1] == (3 * MEGABYTE, 3 * MEGABYTE)

    async def test_a_failed_upload_leaves_what_was_there(
        self, sandbox: AsyncSandbox, directory: str, tree: Path
    ) -> None:
        """opensandbox-group/OpenSandbox#1016: all of the new tree or all of the old one, never a mixture."""
        await sandbox.files.write(f"{directory}/tree/old", b"old")

        def stop(done: int, total: int) -> None:
            if done:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await sandbox.files.upload(tree, f"{directory}/tree", on_progress=stop)
        assert [entry.path for entry in await sandbox.files.list(f"{directory}/tree")] == ["old"]

    async def test_a_directory_is_replaced_or_merged_as_asked(
        self, sandbox: AsyncSandbox, directory: str, tree: Path
    ) -> None:
        """Without `merge` nothing of the former tree stays; with it nothing of it goes."""
        await sandbox.files.write(f"{directory}/tree/old", b"old")
        await sandbox.files.upload(tree, f"{directory}/tree", merge=True)
        assert await sandbox.files.exists(f"{directory}/tree/old")
        assert await sandbox.files.exists(f"{directory}/tree/run.sh")
        await sandbox.files.upload(tree, f"{directory}/tree")
        assert not await sandbox.files.exists(f"{directory}/tree/old")

    async def test_what_is_excluded_stays_out(self, sandbox: AsyncSandbox, directory: str, tree: Path) -> None:
        """A name in `exclude` is left out with all below it, and the transfer says so or has nothing of it."""
        await sandbox.files.upload(tree, f"{directory}/tree", exclude=["sub"])
        assert {entry.path for entry in await sandbox.files.list(f"{directory}/tree")} == {"run.sh", "secret"}

    async def test_a_download_does_not_write_outside_its_target(
        self, sandbox: AsyncSandbox, directory: str, tmp_path: Path
    ) -> None:
        """A sandbox's links must not lead a download to files of the host."""
        (tmp_path / "victim").write_text("mine")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/x").symlink_to(tmp_path / "victim")
        await sandbox.files.write(f"{directory}/t/x", b"theirs")
        await sandbox.files.download(f"{directory}/t", tmp_path / "out", merge=True)
        assert (tmp_path / "victim").read_text() == "mine"
        assert (tmp_path / "out/x").read_bytes() == b"theirs"

    async def test_what_is_not_there_is_an_error_and_leaves_nothing(
        self, sandbox: AsyncSandbox, directory: str, tmp_path: Path
    ) -> None:
        """Neither an empty file nor an empty directory is made for what does not exist."""
        with pytest.raises(FileNotFoundError):
            await sandbox.files.upload(tmp_path / "nothing", f"{directory}/x")
        with pytest.raises(FileMissing):
            await sandbox.files.download(f"{directory}/nothing", tmp_path / "x")
        assert not await sandbox.files.exists(f"{directory}/x")
        assert not (tmp_path / "x").exists()

    async def test_several_go_at_once(self, sandbox: AsyncSandbox, directory: str, tmp_path: Path) -> None:
        """Pairs are moved together and answered in their order."""
        pairs = []
        for number in range(5):
            (tmp_path / str(number)).write_text(str(number) * (number + 1))
            pairs.append((tmp_path / str(number), f"{directory}/{number}"))
        sent = await sandbox.files.upload_all(pairs)
        assert [transfer.bytes for transfer in sent] == [1, 2, 3, 4, 5]
        await sandbox.files.download_all([(remote, local.with_suffix(".back")) for local, remote in pairs])
        assert (tmp_path / "4.back").read_text() == "44444"

    async def test_a_copy_is_of_its_own(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Files and directories are copied inside the sandbox; a change to one is not seen in the other."""
        await sandbox.files.write(f"{directory}/a/x", b"1", mode=0o750)
        await sandbox.files.copy(f"{directory}/a", f"{directory}/b/c")
        await sandbox.files.write(f"{directory}/a/x", b"2")
        assert await sandbox.files.read(f"{directory}/b/c/x") == b"1"
        assert (await sandbox.files.stat(f"{directory}/b/c/x")).mode == 0o750
        with pytest.raises(AlreadyExists):
            await sandbox.files.copy(f"{directory}/a/x", f"{directory}/b/c/x", overwrite=False)

    async def test_a_hash_tells_trees_apart(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The hash of a file is its SHA-256; that of a tree changes with any content, name or mode."""
        await sandbox.files.write(f"{directory}/a/x", b"abc")
        printed = (await sandbox.exec(["sha256sum", f"{directory}/a/x"])).stdout.split()[0]
        assert await sandbox.files.hash(f"{directory}/a/x") == printed
        await sandbox.files.copy(f"{directory}/a", f"{directory}/b")
        one = await sandbox.files.hash(f"{directory}/a")
        assert await sandbox.files.hash(f"{directory}/b") == one
        await sandbox.files.chmod(f"{directory}/b/x", 0o700)
        assert await sandbox.files.hash(f"{directory}/b") != one

    async def test_a_write_with_an_old_etag_is_a_conflict(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Two editors of one file: the second must not undo the first in silence."""
        path = f"{directory}/x"
        etag = (await sandbox.files.write(path, b"1")).etag
        await sandbox.exec(f"echo 2 > {path}", check=True)
        with pytest.raises(Conflict):
            await sandbox.files.write(path, b"3", if_match=etag)
        assert await sandbox.files.read(path) == b"2\n"
        await sandbox.files.write(path, b"3", if_match=(await sandbox.files.stat(path)).etag)
        assert await sandbox.files.read(path) == b"3"

    async def test_a_file_does_not_replace_a_directory(
        self, sandbox: AsyncSandbox, directory: str, tmp_path: Path
    ) -> None:
        """A whole directory must not vanish because a file was sent under its name."""
        (tmp_path / "file").write_text("x")
        await sandbox.files.write(f"{directory}/kept/x", b"kept")
        with pytest.raises((IsADirectory, SkerryError)):
            await sandbox.files.upload(tmp_path / "file", f"{directory}/kept")
        assert await sandbox.files.read(f"{directory}/kept/x") == b"kept"
