"""Snapshots, going back to them, and copies of running sandboxes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from skerry.core import (
    SNAPSHOT,
    Conflict,
    InvalidArgument,
    Provider,
    SandboxNotFound,
    SnapshotInfo,
    SnapshotNotFound,
    State,
    new_snapshot_id,
)
from skerry.sdk import AsyncForkResult, AsyncSandbox, AsyncSnapshots
from skerry.testing.cases.base import Conformance, Fresh, alive
from skerry.testing.cases.state.lifecycle import unique

TREE = """
set -e
mkdir -p tree/deep/er "tree/odd name" tree/empty
echo one > tree/deep/er/file; printf 'a\\0b' > "tree/odd name/zero"; : > tree/none
ln -s ../none tree/deep/link; ln tree/none tree/hard
chmod 640 tree/none; chmod 1777 tree/empty
head -c 300000 /dev/urandom > tree/large
"""
SPOIL = """
set -e
rm -r tree/deep "tree/odd name"; mkdir tree/deep; echo two > tree/deep/er; chmod 600 tree/empty
mv tree/large tree/moved; echo more >> tree/none; echo new > tree/new
"""
LIST = "find tree -printf '%p %y %m %U:%G %n %l\\n' | sort; find tree -type f -exec sha256sum {} + | sort"


async def listing(sandbox: AsyncSandbox) -> str:
    """Names, types, modes, owners, links and contents of the tree."""
    return (await sandbox.exec(LIST, check=True)).stdout


class SnapshotsConformance(Conformance):
    """Keeping the files of a sandbox, and going back to them."""

    title = "snapshots"
    needs = "snapshots"

    async def test_a_sandbox_goes_on_while_and_after_its_snapshot_is_taken(self, fresh: Fresh) -> None:
        """A process that runs is neither ended nor disturbed."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn(["sleep", "1000"])
        made = await sandbox.snapshots.create()
        assert (await sandbox.info()).state is State.RUNNING
        assert await alive(sandbox, process.pid)
        assert (await sandbox.exec("echo on")).stdout == "on\n"
        assert made.sandbox_id == sandbox.id
        await sandbox.snapshots.delete(made)

    async def test_restore_keeps_the_id_and_brings_back_exactly_the_files(self, fresh: Fresh) -> None:
        """Names, types, modes, owners, links and contents: what was added is gone, what was removed is back."""
        sandbox = await fresh()
        await sandbox.exec(TREE, check=True)
        workdir = (await sandbox.info()).workdir
        before, digest = await listing(sandbox), await sandbox.files.hash(workdir)
        made = await sandbox.snapshots.create()
        await sandbox.exec(SPOIL, check=True)
        assert await listing(sandbox) != before
        info = await sandbox.snapshots.restore(made)
        assert (info.id, info.state) == (sandbox.id, State.RUNNING)
        assert (await listing(sandbox), await sandbox.files.hash(workdir)) == (before, digest)
        await sandbox.snapshots.delete(made)

    async def test_processes_started_later_are_gone_after_a_restore(self, fresh: Fresh) -> None:
        """Processes from before are gone as well: a snapshot keeps files, not memory."""
        sandbox = await fresh()
        made = await sandbox.snapshots.create()
        await sandbox.processes.spawn(["sleep", "4321"])
        await sandbox.snapshots.restore(made)
        assert await sandbox.processes.list() == []
        assert "4321" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
        await sandbox.snapshots.delete(made)

    async def test_restore_brings_back_the_variables(self, fresh: Fresh) -> None:
        """Changed, added and removed variables are as before."""
        sandbox = await fresh(env={"KEPT": "1", "CHANGED": "1"})
        await sandbox.env.set("ADDED", "1")
        made = await sandbox.snapshots.create()
        await sandbox.env.set({"CHANGED": "2", "LATER": "2"})
        await sandbox.env.unset("KEPT")
        await sandbox.snapshots.restore(made)
        assert [await sandbox.env.get(name) for name in ("KEPT", "CHANGED", "ADDED", "LATER")] == ["1", "1", "1", None]
        await sandbox.snapshots.delete(made)

    async def test_a_snapshot_is_found_by_id_and_by_name(self, fresh: Fresh, provider: Provider) -> None:
        """A snapshot comes with its name and description."""
        sandbox, name = await fresh(), unique("snap")
        lines: list[str] = []
        made = await sandbox.snapshots.create(name, description="first of all", on_log=lines.append)
        everything = AsyncSnapshots(provider)
        assert await everything.get(name) == await everything.get(made.id) == await sandbox.snapshots.get(name) == made
        assert (made.name, made.description, made.kind in ("files", "disk", "memory")) == (name, "first of all", True)
        assert any(made.id in line for line in lines)
        await sandbox.snapshots.delete(name)
        with pytest.raises(SnapshotNotFound):
            await everything.get(name)

    async def test_a_taken_name_is_a_conflict_and_delete_frees_it(self, fresh: Fresh) -> None:
        """Names are unique among all snapshots."""
        sandbox, name = await fresh(), unique("snap")
        made = await sandbox.snapshots.create(name)
        with pytest.raises(Conflict):
            await sandbox.snapshots.create(name)
        await sandbox.snapshots.delete(made)
        await sandbox.snapshots.delete(await sandbox.snapshots.create(name))

    async def test_unknown_snapshots_raise(self, sandbox: AsyncSandbox, attempt: Fresh) -> None:
        """computesdk/computesdk#741: they are errors, and nothing is made or changed in their place."""
        for unknown in (new_snapshot_id(), "no-such-name", "../escape"):
            for call in (sandbox.snapshots.get, sandbox.snapshots.restore, sandbox.snapshots.delete):
                with pytest.raises(SnapshotNotFound):
                    await call(unknown)
            with pytest.raises(SnapshotNotFound):
                await attempt(snapshot=unknown)
        assert (await sandbox.exec("true")).ok

    @pytest.mark.parametrize("name", ["", "Upper", f"{SNAPSHOT}taken", "a/b", "x" * 64, 7])
    async def test_what_can_be_no_name_is_refused(self, sandbox: AsyncSandbox, name: Any) -> None:
        """An impossible name is refused before anything is done."""
        with pytest.raises(InvalidArgument):
            await sandbox.snapshots.create(name)

    async def test_a_list_is_newest_first_and_a_tree_follows_the_parents(self, fresh: Fresh) -> None:
        """A snapshot's parent is what its sandbox was last equal to."""
        sandbox = await fresh()
        made = [await sandbox.snapshots.create() for _ in range(2)]
        await sandbox.snapshots.restore(made[0])
        made.append(await sandbox.snapshots.create())
        assert [info.id for info in await sandbox.snapshots.list()] == [info.id for info in reversed(made)]
        assert [info.parent for info in made] == [None, made[0].id, made[0].id]
        [root] = await sandbox.snapshots.tree()
        assert [node.snapshot.id for node in root.children] == [made[1].id, made[2].id]
        await sandbox.snapshots.delete(made[0])
        assert [info.parent for info in await sandbox.snapshots.list()] == [None, None]
        await _delete(sandbox, made[1:])

    async def test_a_sandbox_made_from_a_snapshot_has_its_files_and_variables(
        self, fresh: Fresh, attempt: Fresh
    ) -> None:
        """The new sandbox has the same tree, and the options given override the rest."""
        sandbox = await fresh(env={"A": "1", "B": "1"}, workdir="/tmp")
        await sandbox.exec(TREE, check=True)
        before = await listing(sandbox)
        made = await sandbox.save_state()
        await sandbox.exec(SPOIL, check=True)
        other = await attempt(snapshot=made, env={"B": "2"})
        third = await attempt(restore_from=made.id, workdir="/")
        assert await listing(other) == before
        assert [await other.env.get(name) for name in "AB"] == ["1", "2"]
        assert ((await other.info()).workdir, (await third.info()).workdir) == ("/tmp", "/")
        await other.exec(SPOIL, check=True)
        assert (await third.exec("cat tmp/tree/deep/er/file")).stdout == "one\n"
        with pytest.raises(InvalidArgument):
            await attempt(snapshot=made, template="host")
        await sandbox.snapshots.delete(made)

    async def test_a_snapshot_outlives_its_sandbox_and_copies_outlive_the_snapshot(
        self, fresh: Fresh, attempt: Fresh, provider: Provider
    ) -> None:
        """Deleting what others were made from takes nothing from them."""
        sandbox = await fresh()
        await sandbox.files.write("data", b"precious")
        made = await sandbox.snapshots.create()
        await sandbox.destroy()
        assert made in await AsyncSnapshots(provider).list()
        copy = await attempt(snapshot=made)
        await AsyncSnapshots(provider).delete(made)
        assert made.id not in {info.id for info in await AsyncSnapshots(provider).list()}
        assert await copy.files.read("data") == b"precious"
        again = await copy.snapshots.create()
        assert again.parent is None
        await copy.snapshots.delete(again)

    async def test_a_snapshot_of_a_copy_of_a_snapshot_is_complete(self, fresh: Fresh, attempt: Fresh) -> None:
        """Each generation has what all before it had."""
        made: list[SnapshotInfo] = []
        sandbox = await fresh()
        for number in range(3):
            await sandbox.exec(f"echo {number} > {number}; rm -f ./{number - 2}", check=True)
            made.append(await sandbox.snapshots.create())
            sandbox = await attempt(snapshot=made[-1])
        assert (await sandbox.exec("cat *")).stdout == "1\n2\n"
        assert [info.parent for info in made] == [None, made[0].id, made[1].id]
        await _delete(sandbox, made)

    async def test_events_tell_of_snapshots_and_restores(self, fresh: Fresh, provider: Provider) -> None:
        """Every client sees the events, in order."""
        sandbox = await fresh()
        made = await sandbox.snapshots.create()
        await sandbox.snapshots.restore(made)
        types = [event.type for event in await provider.events(sandbox.id)]
        assert types[types.index("snapshot_created") :] == ["snapshot_created", "restored"]
        await sandbox.snapshots.delete(made)

    async def test_the_end_of_a_block_destroys_also_after_a_restore(self, fresh: Fresh, provider: Provider) -> None:
        """A lease holds on."""
        async with await fresh() as sandbox:
            made = await sandbox.snapshots.create()
            await sandbox.snapshots.restore(made)
            assert (await sandbox.exec("echo here")).stdout == "here\n"
            await sandbox.snapshots.delete(made)
        with pytest.raises(SandboxNotFound):
            await provider.get(sandbox.id)


class CopiesConformance(Conformance):
    """Clones and forks of running sandboxes."""

    title = "copies"
    needs = "snapshots"

    async def test_a_clone_has_files_and_variables_and_the_source_goes_on(self, fresh: Fresh) -> None:
        """Neither the clone nor the source sees what the other does afterwards."""
        sandbox = await fresh(env={"A": "1"}, metadata={"k": "v"}, labels={"l": "m"})
        await sandbox.env.set("LIVE", "yes")
        await sandbox.exec(TREE, check=True)
        process = await sandbox.processes.spawn(["sleep", "1000"])
        async with await sandbox.clone(env={"A": "2"}) as copy:
            assert await alive(sandbox, process.pid)
            assert await listing(copy) == await listing(sandbox)
            assert [await copy.env.get(name) for name in ("A", "LIVE")] == ["2", "yes"]
            assert await copy.processes.list() == []
            info = await copy.info()
            assert (info.name, info.metadata, info.labels) == (None, {"k": "v"}, {"l": "m"})
            await copy.exec(SPOIL, check=True)
            assert await listing(copy) != await listing(sandbox)
        assert (await sandbox.exec("cat tree/deep/er/file")).stdout == "one\n"
        assert await sandbox.snapshots.list() == []

    async def test_a_clone_takes_changes(self, fresh: Fresh, attempt: Fresh) -> None:
        """Name, metadata, labels and limits are the copy's own."""
        sandbox, name = await fresh(resources={"memory": "300MB"}), unique("clone")
        async with await sandbox.clone(
            name=name, resources={"pids": 77}, metadata={"a": "b"}, labels={}, timeout=500
        ) as copy:
            info = await copy.info()
            assert (info.name, info.metadata, info.labels) == (name, {"a": "b"}, {})
            assert (info.resources.memory, info.resources.pids) == (300_000_000, 77)
            assert info.expires_at is not None and info.expires_at - info.created_at < 520
            with pytest.raises(Conflict):
                await sandbox.clone(name=name)

    async def test_a_copy_has_its_source_s_options_whoever_makes_it(self, fresh: Fresh, provider: Provider) -> None:
        """What ends a sandbox by itself ends its copies too, also those made by a client that did not create it."""
        asked = {"auto_stop": 500.0, "auto_archive": 600.0, "auto_delete": 700.0, "timeout": 400.0}
        sandbox = await fresh(purpose="preview", on_timeout="stop", **asked)
        found = await AsyncSandbox.get(sandbox.id, provider=provider)
        async with await found.clone() as copy:
            info = await copy.info()
            assert {name: getattr(info, name) for name in asked} == pytest.approx(asked, abs=5)
            assert (info.purpose, info.on_timeout) == ("preview", "stop")
            assert found.config.auto_stop == copy.config.auto_stop == 500
        await found.close()

    async def test_forks_are_all_of_the_same_moment(self, fresh: Fresh) -> None:
        """A counter that runs on in the source has one value in all copies."""
        sandbox = await fresh()
        await sandbox.processes.spawn("while :; do n=$((n+1)); echo $n > count.new; mv count.new count; done")
        await sandbox.exec("until test -s count; do :; done")
        results = await sandbox.fork(4)
        copies = [result.sandbox for result in results if result.sandbox is not None]
        try:
            assert [result.error for result in results] == [None] * 4
            assert len({copy.id for copy in copies} | {sandbox.id}) == 5
            assert len({await copy.files.read("count") for copy in copies}) == 1
        finally:
            for copy in copies:
                await copy.destroy()

    async def test_a_cancelled_fork_leaves_nothing(self, fresh: Fresh, provider: Provider) -> None:
        """A fork leaves neither copies nor a snapshot, whenever its caller gives up."""
        sandbox = await fresh()
        before = {info.id for info in await provider.list()}
        for delay in (0.0, 0.01, 0.05):
            results: tuple[AsyncForkResult, ...] = ()
            with anyio.move_on_after(delay):
                results = await sandbox.fork(3)
            for result in results:
                assert result.sandbox is not None
                await result.sandbox.destroy()
        assert {info.id for info in await provider.list()} == before
        assert await sandbox.snapshots.list() == []
        assert (await sandbox.exec("echo on")).stdout == "on\n"

    @pytest.mark.parametrize("count", [0, -1, 100_000, "3", True])
    async def test_a_count_that_makes_no_sense_is_refused(self, sandbox: AsyncSandbox, count: Any) -> None:
        """A wrong count is refused before anything is made."""
        with pytest.raises(InvalidArgument):
            await sandbox.fork(count)


async def _delete(sandbox: AsyncSandbox, snapshots: list[SnapshotInfo]) -> None:
    for snapshot in snapshots:
        await sandbox.snapshots.delete(snapshot)
