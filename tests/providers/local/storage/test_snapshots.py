"""The local provider's snapshots: disk limits, damaged and half-made state, a full pool, several processes at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors
from skerry.core.models import Resources, SandboxSpec, State, VolumeMount
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import ProcessId
from skerry.providers.local.launch import launch
from skerry.providers.local.sandbox.changes import restoring_trees
from skerry.providers.local.sandbox.create import Creation
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import snapshot_record, snapshots
from skerry.providers.local.storage.snapshot_record import Kept
from tests import inventory

MB = 1_000_000
FILL = """
import os, sys
try:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(int(sys.argv[2])):
            file.write(os.urandom(1_000_000))
        os.fsync(file.fileno())
    print("fits")
except OSError as error:
    print(error.errno in (28, 122))
"""


@pytest.fixture(params=["pool", "directory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def make(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
    """Makes engines on one SKERRY_HOME of this test's own, and sees that nothing is left of its sandboxes."""
    before: list[inventory.Inventory] = []

    def engine(kind: str = "pool", pool: str = "2GB") -> Engine:
        monkeypatch.setenv("SKERRY_STORAGE", kind)
        monkeypatch.setenv("SKERRY_POOL_SIZE", pool)
        made = Engine(home)
        made.prepare()
        if not before:
            before.append(inventory.take(home))
        return made

    yield engine
    last = engine()
    for info in last.list():
        last.destroy(info.id)
    for record in last.snapshots.list():
        last.snapshots.delete(record.id)
    last.sweep()
    assert inventory.left(before[0], inventory.settle(home, before[0])) == {}
    unmount(home)


def unmount(home: Path) -> None:
    subprocess.run(["umount", str(home / "pool")], check=False, capture_output=True)


def create(engine: Engine, **options: object) -> tuple[Record, Sandbox]:
    record = engine.create(SandboxSpec(timeout=600, **options))  # type: ignore[arg-type]
    return record, Sandbox.get(record.id, provider=LocalProvider(engine))


def take(engine: Engine, record: Record, name: str | None = None, *, hidden: bool = False) -> Kept:
    return engine.capture.take(record.id, name=name, description="", hidden=hidden)


def fill(sandbox: Sandbox, path: str, megabytes: int) -> str:
    return sandbox.exec(["python3", "-c", FILL, path, str(megabytes)], timeout=120, check=True).stdout.strip()


def fits(sandbox: Sandbox, path: str, megabytes: int) -> bool:
    """Whether it can be written within a while: what was deleted is given back when the kernel has counted again."""
    deadline = time.monotonic() + 60
    while fill(sandbox, path, megabytes) != "fits":
        sandbox.files.remove(path)
        if time.monotonic() > deadline:
            return False
    return True


# -- the disk limit


def test_a_disk_limit_holds_before_and_after_a_snapshot_and_deleting_frees_the_space(
    make: Callable[..., Engine],
) -> None:
    engine = make()
    record, sandbox = create(engine, resources=Resources(disk=200 * MB))
    assert fill(sandbox, "/workspace/first", 120) == "fits"
    assert fill(sandbox, "/workspace/second", 100) == "True"
    with pytest.raises(errors.DiskFull):
        sandbox.files.write("/workspace/third", bytes(90 * MB))
    assert sandbox.exec("echo usable").stdout == "usable\n"
    sandbox.files.remove("/workspace/second")
    made = take(engine, record)
    assert made.size is not None and 120 * MB <= made.size < 140 * MB
    assert fill(sandbox, "/workspace/second", 100) == "True", "the limit holds after a snapshot"
    sandbox.files.remove("/workspace/second")
    sandbox.files.remove("/workspace/first")
    assert fits(sandbox, "/workspace/second", 150), "the space is free again although a snapshot has the file"
    engine.restore.to_snapshot(record.id, made.id)
    assert sandbox.files.stat("/workspace/first").size == 120 * MB
    assert fill(sandbox, "/workspace/second", 100) == "True", "the limit holds after a restore"
    assert sandbox.exec("echo usable").stdout == "usable\n"


def test_a_disk_limit_holds_in_a_clone_and_counts_what_it_began_with(make: Callable[..., Engine]) -> None:
    engine = make()
    _, sandbox = create(engine, resources=Resources(disk=200 * MB))
    assert fill(sandbox, "/workspace/first", 120) == "fits"
    copy = sandbox.clone()
    assert fill(copy, "/workspace/second", 50) == "fits"
    assert fill(copy, "/workspace/third", 50) == "True"
    with pytest.raises(errors.DiskFull):
        copy.files.write("/workspace/fourth", bytes(60 * MB))
    assert copy.exec("wc -c < /workspace/first").stdout.strip() == str(120 * MB)
    usage = copy.usage()
    assert usage.disk_total == 200 * MB
    with pytest.raises(errors.QuotaExceeded):
        sandbox.clone(resources={"disk": 100 * MB})
    larger = sandbox.clone(resources={"disk": 300 * MB})
    assert fill(larger, "/workspace/second", 150) == "fits"


def test_a_snapshot_above_the_limit_is_not_restored(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine, resources=Resources(disk=60 * MB))
    assert fill(sandbox, "/workspace/first", 40) == "fits"
    made = take(engine, record)
    sandbox.files.remove("/workspace/first")
    sandbox.set_limits(disk=20 * MB)
    with pytest.raises(errors.QuotaExceeded):
        engine.restore.to_snapshot(record.id, made.id)
    assert sandbox.exec("echo on").stdout == "on\n"


def test_a_disk_full_in_the_middle_of_a_snapshot_leaves_nothing_of_it(make: Callable[..., Engine], home: Path) -> None:
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60M,mode=700", "none", str(home)], check=True)
    try:
        engine = make("directory")
        record, sandbox = create(engine)
        assert fill(sandbox, "/workspace/half", 40) == "fits"
        for call in (lambda: take(engine, record, "named"), sandbox.clone):
            with pytest.raises(errors.DiskFull):
                call()
            assert sandbox.exec("echo on").stdout == "on\n"
            assert list(engine.storage.kept.iterdir()) == []
            assert list(engine.store.snapshots.glob("sn-*")) == []
        sandbox.files.remove("/workspace/half")
        made = take(engine, record, "named")
        assert fill(sandbox, "/workspace/rest", 80) == "True"
        engine.snapshots.delete(made.id)
        engine.destroy(record.id)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_full_pool_lets_a_sandbox_go_on_and_snapshots_be_deleted(make: Callable[..., Engine]) -> None:
    engine = make(pool="300MB")
    record, sandbox = create(engine)
    assert fill(sandbox, "/workspace/full", 400) == "True"
    for _ in range(3):
        with contextlib.suppress(errors.DiskFull):
            take(engine, record)
    assert sandbox.exec("echo on").stdout == "on\n"
    assert engine.get(record.id).state is State.RUNNING
    known = {path.stem for path in engine.store.snapshots.glob("*.json")}
    assert {path.name for path in engine.storage.kept.iterdir()} == known
    for each in engine.snapshots.list():
        engine.snapshots.delete(each.id)
    assert list(engine.storage.kept.iterdir()) == []


# -- what is kept of variables and secrets


def test_secrets_are_in_no_snapshot_and_in_no_copy_unless_asked_for(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine, env={"PLAIN": "plain-value"}, secrets={"TOKEN": "secret-value"})
    assert sandbox.env.get("TOKEN") == "secret-value"
    made = take(engine, record)
    stored = b"".join(path.read_bytes() for path in engine.store.snapshots.glob("*.json"))
    assert b"plain-value" in stored
    assert b"secret-value" not in stored
    assert "TOKEN" not in made.info().env_names
    plain, asked, other = sandbox.clone(), sandbox.clone(secrets=True), sandbox.clone(secrets={"OTHER": "x"})
    assert [each.env.get("TOKEN") for each in (plain, asked, other)] == [None, "secret-value", None]
    assert other.env.get("OTHER") == "x"
    assert take(engine, engine.store.read(asked.id)).env == made.env
    engine.restore.to_snapshot(record.id, made.id)
    assert sandbox.env.get("TOKEN") == "secret-value", "its own secrets stay"


# -- one above the other


@pytest.mark.parametrize("outcome", ["failed", "made"])
def test_copies_that_cannot_all_be_removed_or_leave_their_snapshot(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """One that somebody else has destroyed keeps no other; and what was made is not lost with its snapshot."""
    engine = make("directory")
    record, sandbox = create(engine)
    destroy, asked = LocalProvider.destroy, list[str]()

    async def gone(self: LocalProvider, sandbox_id: str, **options: object) -> None:
        asked.append(sandbox_id)
        await destroy(self, sandbox_id, **options)  # type: ignore[arg-type]
        raise errors.SandboxNotFound(f"there is no sandbox {sandbox_id!r}")

    async def broken(self: LocalProvider, snapshot_id: str) -> None:
        raise errors.DiskFull("no room")

    def tell(line: str) -> None:
        if line.startswith("3 of 3"):
            raise RuntimeError("enough")

    if outcome == "failed":
        monkeypatch.setattr(LocalProvider, "destroy", gone)
        with pytest.raises(ExceptionGroup):
            sandbox.fork(3, on_log=tell)
        assert len(asked) == 3
        assert [info.id for info in engine.list()] == [record.id]
    else:
        monkeypatch.setattr(LocalProvider, "delete_snapshot", broken)
        assert all(result.sandbox for result in sandbox.fork(2))
        assert len(engine.list()) == 3
    monkeypatch.undo()
    for kept_id in [path.stem for path in engine.store.snapshots.glob("sn-*.json")]:
        engine.snapshots.delete(kept_id)


def test_a_long_line_of_copies_stays_complete_and_shallow(
    make: Callable[..., Engine], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_LAYERS", 3)
    engine = make(kind)
    record, sandbox = create(engine)
    for number in range(6):
        sandbox.files.write(f"/workspace/{number}", str(number))
        copy = sandbox.clone()
        engine.destroy(record.id)
        record, sandbox = engine.store.read(copy.id), copy
    assert len(snapshots.snapshots_in(record.lowers)) <= 3
    assert sandbox.exec("cat /workspace/*").stdout == "012345"
    left = {path.name for path in engine.storage.kept.iterdir()}
    assert left == set(snapshots.snapshots_in((*record.lowers, *filter(None, [record.seed])))), "no more than is needed"


# -- damaged and half-made state


def test_a_damaged_record_hides_no_other_and_can_be_removed(make: Callable[..., Engine]) -> None:
    engine = make()
    record, _ = create(engine)
    bad, good = take(engine, record, "bad"), take(engine, record, "good")
    path = engine.store.snapshots / f"{bad.id}.json"
    for damage in (b"", b"{", b'{"version": 0}', json.dumps({"version": 1, "id": bad.id}).encode()):
        path.write_bytes(damage)
        assert [each.id for each in engine.snapshots.list()] == [good.id]
        with pytest.raises(errors.Corrupted) as caught:
            engine.snapshots.find(bad.id)
        assert bad.id in caught.value.hint
    engine.sweep()
    assert engine.snapshots.tree(bad.id).exists(), "kept for its owner to see"
    engine.snapshots.delete(bad.id)
    engine.sweep()
    assert not engine.snapshots.tree(bad.id).exists()
    with pytest.raises(errors.SnapshotNotFound):
        engine.snapshots.find(bad.id)


def test_a_snapshot_whose_files_are_missing_says_so(make: Callable[..., Engine], kind: str) -> None:
    engine = make(kind)
    record, sandbox = create(engine)
    made = take(engine, record)
    engine.storage.remove(engine.snapshots.tree(made.id))
    with pytest.raises(errors.Corrupted):
        engine.create(SandboxSpec(snapshot=made.id))
    with pytest.raises(errors.Corrupted):
        engine.restore.to_snapshot(record.id, made.id)
    assert sandbox.exec("echo on").stdout == "on\n"
    engine.snapshots.delete(made.id)


def test_the_sweep_removes_what_nobody_needs_and_nothing_else(make: Callable[..., Engine], kind: str) -> None:
    engine = make(kind)
    record, _ = create(engine)
    needed, unneeded, leased, wanted = (
        take(engine, record, hidden=True),
        take(engine, record, hidden=True),
        take(engine, record, hidden=True),
        take(engine, record),
    )
    copy = engine.create(SandboxSpec(snapshot=needed.id))
    unfinished = dataclasses.replace(wanted, id="sn-unfinished2", ready=False)
    dead = ProcessId(pid=2**22 - 1, start=1, boot="another")
    for each in (needed, unneeded, unfinished):
        snapshot_record.write(engine.store.snapshots / f"{each.id}.json", dataclasses.replace(each, lease=dead))
    engine.storage.copy(engine.storage.uppers / record.id, engine.snapshots.tree(unfinished.id))
    engine.storage.copy(engine.storage.uppers / record.id, engine.storage.kept / "sn-stray22222")
    Engine(engine.store.home).sweep()
    there = {needed.id, leased.id, wanted.id}
    assert {path.name for path in engine.storage.kept.iterdir()} == there
    assert {path.stem for path in engine.store.snapshots.glob("*.json")} == there
    engine.destroy(copy.id)
    engine.snapshots.delete(leased.id)
    assert {path.name for path in engine.storage.kept.iterdir()} == {wanted.id}


def test_a_snapshot_in_use_by_a_create_under_way_is_not_removed(make: Callable[..., Engine]) -> None:
    engine = make()
    record, _ = create(engine)
    made = take(engine, record)
    with engine.snapshots.held(made.id):
        engine.snapshots.delete(made.id)
        Engine(engine.store.home).sweep()
        assert engine.snapshots.tree(made.id).exists()
    engine.sweep()
    assert not engine.snapshots.tree(made.id).exists()


@pytest.mark.parametrize("moment", ["found", "starting"])
def test_what_a_create_under_way_needs_outlives_its_deletion(
    make: Callable[..., Engine], kind: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(kind)
    record, sandbox = create(engine)
    sandbox.files.write("kept", b"data")
    made = take(engine, record)
    engine.destroy(record.id)
    engine.volumes.create("shared", size=None, temporary=False)
    refused: list[str] = []

    def delete_all() -> None:
        other = Engine(engine.store.home)  # it sweeps, too
        other.snapshots.delete(made.id)
        if moment == "starting":
            with pytest.raises(errors.Conflict):
                other.volumes.delete("shared")
            refused.append("shared")

    owner, name = (Creation, "_create") if moment == "found" else (launch, "start")
    unchanged = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: (delete_all(), unchanged(*args))[1])
    copy, sandbox = create(engine, snapshot=made.id, volumes=(VolumeMount(name="shared", path="/data"),))
    monkeypatch.undo()
    assert sandbox.files.read("kept") == b"data"
    assert refused == (["shared"] if moment == "starting" else [])
    with pytest.raises(errors.SnapshotNotFound):
        engine.snapshots.find(made.id)
    assert engine.snapshots.tree(made.id).exists()
    engine.destroy(copy.id)
    assert not engine.snapshots.tree(made.id).exists()
    engine.volumes.delete("shared")


def test_a_sandbox_left_frozen_in_the_middle_of_a_snapshot_goes_on(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine)
    before = take(engine, record)
    record = engine.store.read(record.id)
    engine.changes.begin(record, "snapshot", taken="sn-nothing222")
    engine.cgroups.freeze(record.id)
    assert Engine(engine.store.home).get(record.id).state is State.RUNNING
    assert sandbox.exec("echo on", timeout=20).stdout == "on\n"
    assert engine.store.read(record.id).snapshot == before.id


@pytest.mark.parametrize("step", ["begun", "halted", "away", "in place", "half copied"])
def test_a_restore_cut_short_is_finished_by_the_next_command(make: Callable[..., Engine], kind: str, step: str) -> None:
    engine = make(kind)
    record, sandbox = create(engine)
    sandbox.files.write("/workspace/file", "old")
    made = take(engine, record)
    sandbox.files.write("/workspace/file", "new")
    upper = engine.storage.uppers / record.id
    fresh, old = restoring_trees(upper)
    record = engine.changes.begin(engine.store.read(record.id), "restore", state=State.RESTORING, target=made.id)
    engine.storage.copy(engine.snapshots.tree(made.id), fresh)
    if step != "begun":
        engine.changes.halt(record)
    if step in ("away", "in place"):
        upper.rename(old)
    if step == "in place":
        fresh.rename(upper)
    if step == "half copied":
        engine.storage.remove(fresh)
        engine.storage.create(fresh, None)
    info = Engine(engine.store.home).get(record.id)
    assert (info.state, info.snapshot) == (State.STOPPED, made.id)
    assert (upper / "u/workspace/file").read_text() == "old"
    assert not fresh.exists()
    assert not old.exists()


def test_a_restore_that_cannot_be_finished_keeps_the_files_there_were(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine)
    made = take(engine, record)
    sandbox.files.write("/workspace/file", "precious")
    upper = engine.storage.uppers / record.id
    record = engine.changes.begin(engine.store.read(record.id), "restore", state=State.RESTORING, target=made.id)
    engine.changes.halt(record)
    upper.rename(restoring_trees(upper)[1])
    engine.storage.remove(engine.snapshots.tree(made.id))
    info = Engine(engine.store.home).get(record.id)
    assert info.state is State.FAILED
    assert "missing" in (info.reason or "")
    assert (upper / "u/workspace/file").read_text() == "precious"


def test_a_snapshot_of_another_template_is_refused(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine)
    made = take(engine, record)
    snapshot_record.write(engine.store.snapshots / f"{made.id}.json", dataclasses.replace(made, template="other"))
    with pytest.raises(errors.Conflict, match="other"):
        engine.restore.to_snapshot(record.id, made.id)
    assert sandbox.exec("echo on").stdout == "on\n"


def test_a_sandbox_that_does_not_run_is_snapshotted_and_restored_too(make: Callable[..., Engine], kind: str) -> None:
    engine = make(kind)
    record, sandbox = create(engine, env={"A": "1"})
    sandbox.files.write("/workspace/file", "kept")
    assert record.init is not None
    record.init.kill(10)
    assert engine.get(record.id).state is State.FAILED
    made = take(engine, record)
    assert made.env == {"A": "1"}
    (engine.storage.uppers / record.id / "u/workspace/file").write_text("spoiled")
    assert engine.restore.to_snapshot(record.id, made.id).state is State.STOPPED
    assert (engine.storage.uppers / record.id / "u/workspace/file").read_text() == "kept"
    copy = engine.create(SandboxSpec(snapshot=made.id))
    assert Sandbox.get(copy.id, provider=LocalProvider(engine)).files.read("/workspace/file") == b"kept"


def test_a_snapshot_of_a_paused_sandbox_has_the_variables_in_force(make: Callable[..., Engine]) -> None:
    engine = make()
    record, sandbox = create(engine, env={"A": "1"}, secrets={"KEY": "secret"})
    sandbox.env.set("B", "2")
    engine.lifecycle.pause(record.id)
    made = take(engine, record)
    assert (made.env.get("A"), made.env.get("B"), made.env.get("KEY")) == ("1", "2", None)
    engine.lifecycle.resume(record.id)
    assert sandbox.exec("echo $A$B$KEY").stdout == "12secret\n"


def test_an_archived_sandbox_is_to_be_started_first(make: Callable[..., Engine]) -> None:
    engine = make()
    record, _ = create(engine)
    made = take(engine, record)
    engine.changes.save(dataclasses.replace(engine.changes.halt(engine.store.read(record.id)), state=State.ARCHIVED))
    for call in (lambda: take(engine, record), lambda: engine.restore.to_snapshot(record.id, made.id)):
        with pytest.raises(errors.Conflict) as caught:
            call()
        assert "start" in caught.value.hint


# -- several processes

WORKER = """
import random, sys
from pathlib import Path
from skerry.core import errors
from skerry.core.models import SandboxSpec
from skerry.providers.local.engine import Engine
home, sandbox, seed, destroys = sys.argv[1:]
chance, engine, done = random.Random(int(seed)), Engine(Path(home)), []
for number in range(14):
    mine = [record.id for record in engine.snapshots.list()]
    what = chance.choice(["take", "take", "restore", "delete", "copy"])
    if destroys == "yes" and number == 9:
        what = "destroy"
    try:
        if what == "take":
            engine.capture.take(sandbox, name=f"s{seed}-{number}", description="", hidden=False)
        elif what == "destroy":
            engine.destroy(sandbox)
        elif not mine:
            continue
        elif what == "restore":
            engine.restore.to_snapshot(sandbox, chance.choice(mine))
        elif what == "delete":
            engine.snapshots.delete(chance.choice(mine))
        else:
            engine.destroy(engine.create(SandboxSpec(snapshot=chance.choice(mine))).id)
        done.append(what)
    except (errors.SnapshotNotFound, errors.SandboxNotFound, errors.Conflict) as error:
        done.append(error.code)
print(*done)
"""


@pytest.mark.parametrize("destroys", ["no", "yes"])
def test_processes_that_snapshot_restore_and_destroy_the_same_sandbox(
    make: Callable[..., Engine], kind: str, destroys: str
) -> None:
    engine = make(kind)
    record, sandbox = create(engine)
    sandbox.exec("for i in $(seq 50); do echo $i > /workspace/$i; done", check=True)
    digest = sandbox.files.hash("/workspace")
    seed = random.randrange(10**6)
    env = os.environ | {"SKERRY_HOME": str(engine.store.home)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(engine.store.home), record.id, str(seed + number), destroys],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert (worker.returncode, err) == (0, ""), f"seed {seed}: {out}"
    left = engine.snapshots.list()
    for each in left[:3]:
        copy = engine.create(SandboxSpec(snapshot=each.id))
        assert Sandbox.get(copy.id, provider=LocalProvider(engine)).files.hash("/workspace") == digest
    if destroys == "yes":
        with pytest.raises(errors.SandboxNotFound):
            engine.get(record.id)
    else:
        assert Sandbox.get(record.id, provider=LocalProvider(engine)).files.hash("/workspace") == digest
    assert {path.stem for path in engine.store.snapshots.glob("*.json")} >= {each.id for each in left}


def test_only_one_of_many_gets_a_name(make: Callable[..., Engine]) -> None:
    engine = make()
    record, _ = create(engine)
    program = (
        "import sys; from pathlib import Path; from skerry.core import errors; from skerry.providers.local.engine import Engine\n"
        "try: Engine(Path(sys.argv[1])).capture.take(sys.argv[2], name='mine', description='', hidden=False)\n"
        "except errors.Conflict: sys.exit(7)"
    )
    workers = [subprocess.Popen([sys.executable, "-c", program, str(engine.store.home), record.id]) for _ in range(4)]
    assert sorted(worker.wait(timeout=120) for worker in workers) == [0, 7, 7, 7]
    assert [each.name for each in engine.snapshots.list()] == ["mine"]
