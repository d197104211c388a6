"""Watching: a client that watches a directory learns of every change in it."""

from __future__ import annotations

import anyio
import pytest

from skerry.core import FileMissing
from skerry.sdk import AsyncSandbox, AsyncWatch
from skerry.testing.cases.base import Conformance


async def seen(watch: AsyncWatch, kind: str, path: str) -> list[tuple[str, str, str | None]]:
    """Take events up to the one that is waited for; all of them."""
    events: list[tuple[str, str, str | None]] = []
    with anyio.fail_after(20):
        async for event in watch:
            events.append((str(event.kind), event.path, event.old_path))
            if (event.kind, event.path) == (kind, path):
                return events
    raise AssertionError(f"the watch ended before {kind} {path}: {events}")


class WatchConformance(Conformance):
    """Changes of files as they happen."""

    title = "watch"

    async def test_a_change_in_a_directory_is_seen(self, sandbox: AsyncSandbox, directory: str) -> None:
        """superradcompany/microsandbox#537: a directory can be watched; making, writing and removing are told apart."""
        async with sandbox.files.watch(directory) as watch:
            await sandbox.exec("echo 1 > x", cwd=directory)
            await seen(watch, "modified", "x")
            await sandbox.exec("rm x", cwd=directory)
            await seen(watch, "removed", "x")

    async def test_what_is_created_is_told_before_it_is_changed(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The order of events is that of the changes."""
        async with sandbox.files.watch(directory) as watch:
            await sandbox.exec("echo 1 > a; echo 2 > b; echo 3 >> a; echo > end", cwd=directory)
            events = await seen(watch, "created", "end")
        kinds = [(kind, path) for kind, path, _ in events]
        assert kinds.index(("created", "a")) < kinds.index(("created", "b")) < len(kinds) - 1

    async def test_a_new_directory_is_watched_too(self, sandbox: AsyncSandbox, directory: str) -> None:
        """e2b-dev/E2B#411: recursive means also what is made later, and what was in it already."""
        async with sandbox.files.watch(directory) as watch:
            await sandbox.exec("mkdir -p a/b/c; echo 1 > a/b/c/deep", cwd=directory)
            events = await seen(watch, "created", "a/b/c/deep")
            await sandbox.exec("echo 2 >> a/b/c/deep", cwd=directory)
            await seen(watch, "modified", "a/b/c/deep")
        created = [path for kind, path, _ in events if kind == "created"]
        assert created == ["a", "a/b", "a/b/c", "a/b/c/deep"]

    async def test_one_level_is_one_level(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Without `recursive` what happens further down is not told."""
        await sandbox.files.mkdir(f"{directory}/sub")
        async with sandbox.files.watch(directory, recursive=False) as watch:
            await sandbox.exec("echo 1 > sub/x; echo 1 > y", cwd=directory)
            events = await seen(watch, "created", "y")
        assert not [path for _, path, _ in events if path.startswith("sub/")]

    async def test_a_rename_is_one_event_with_both_names(self, sandbox: AsyncSandbox, directory: str) -> None:
        """An editor can follow a file to its new name."""
        await sandbox.files.write(f"{directory}/old", b"")
        async with sandbox.files.watch(directory) as watch:
            await sandbox.files.rename(f"{directory}/old", f"{directory}/new")
            events = await seen(watch, "renamed", "new")
        assert events == [("renamed", "new", "old")]

    async def test_a_move_in_or_out_is_made_or_removed(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A file that comes from or goes to elsewhere has no second name here."""
        await sandbox.files.mkdir(f"{directory}/in")
        await sandbox.files.write(f"{directory}/x", b"")
        async with sandbox.files.watch(f"{directory}/in") as watch:
            await sandbox.files.rename(f"{directory}/x", f"{directory}/in/x")
            await seen(watch, "created", "x")
            await sandbox.files.rename(f"{directory}/in/x", f"{directory}/x")
            await seen(watch, "removed", "x")

    async def test_nothing_is_lost_in_a_burst_or_the_loss_is_told(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Hundreds of files at once: each one is told, or `overflow` says to look again."""
        async with sandbox.files.watch(directory) as watch:
            await sandbox.exec("seq 1 400 | xargs touch; touch end", cwd=directory)
            events = await seen(watch, "created", "end")
        created = {path for kind, path, _ in events if kind == "created"}
        assert len(created) == 401 or "overflow" in {kind for kind, _, _ in events}

    async def test_a_watch_begins_when_it_is_entered(self, sandbox: AsyncSandbox, directory: str) -> None:
        """What happens right after `async with` is seen; what happened before is not."""
        await sandbox.files.write(f"{directory}/before", b"")
        for number in range(10):
            async with sandbox.files.watch(directory) as watch:
                await sandbox.files.mkdir(f"{directory}/{number}")
                assert await seen(watch, "created", str(number)) == [("created", str(number), None)]

    async def test_the_end_of_what_is_watched_ends_the_watch(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A watch on something that is gone must not wait for ever."""
        await sandbox.files.mkdir(f"{directory}/sub")
        async with sandbox.files.watch(f"{directory}/sub") as watch:
            await sandbox.files.remove(f"{directory}/sub")
            with anyio.fail_after(20):
                events = [(str(event.kind), event.path) async for event in watch]
        assert events[-1][0] == "removed"

    async def test_what_is_not_there_cannot_be_watched(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Watching a missing path is an error at once, not a watch without events."""
        with pytest.raises(FileMissing):
            async with sandbox.files.watch(f"{directory}/nothing"):
                pass
