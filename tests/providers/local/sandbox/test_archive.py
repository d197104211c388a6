"""Cold archives: what comes back, which key it takes, what a damaged file and a full disk do, and who comes first."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skerry.archive
from skerry import Key, Sandbox
from skerry.archive import Archive
from skerry.core import errors
from skerry.core.models import SandboxSpec, State
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.providers.local.sandbox import archive
from skerry.providers.local.sandbox.changes import restoring_trees
from tests import inventory
from tests.conftest import unmount_below
from tests.providers.local.homes import blocks, box, create, fill, inside, own, trees, use

KEY = Key(b"k" * 32)


@pytest.fixture(scope="module", params=["pool", "directory"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp(f"cold-{request.param}") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKERRY_STORAGE", request.param)
        patch.setenv("SKERRY_POOL_SIZE", "1GB")
        use(path)
        yield path
    unmount_below(path.parent)


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    engine = use(home)
    before = inventory.take(home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    assert inventory.left(before, inventory.settle(home, before)) == {}
    assert trees(engine) == []


def files(engine: Engine, sandbox_id: str) -> set[str]:
    return set(os.listdir(engine.store.directory(sandbox_id)))


def archive_file(engine: Engine, sandbox: Sandbox) -> Path:
    return engine.store.directory(sandbox.id) / "archive"


def test_an_archived_sandbox_is_one_file_and_comes_back_as_it_was(engine: Engine) -> None:
    sandbox = create(engine, env={"A": "1"}, secrets={"TOKEN": "s3cret"})
    fill(sandbox)
    sandbox.env.set("B", "2")
    seen = inside(sandbox)
    sandbox.stop()
    before = own(engine, sandbox.id)
    info = sandbox.archive()
    assert (info.state, info.started_at, info.expires_at) == (State.ARCHIVED, None, None)
    assert files(engine, sandbox.id) == {"lock", "record.json", "events.jsonl", "archive"}
    assert archive_file(engine, sandbox).stat().st_mode & 0o777 == 0o600
    assert trees(engine) == []
    assert sandbox.archive().state is State.ARCHIVED
    engine.sweep()
    assert engine.archives.unarchive(sandbox.id, None).state is State.STOPPED
    assert own(engine, sandbox.id) == before
    assert sandbox.start().state is State.RUNNING
    assert inside(sandbox) == seen
    assert blocks(sandbox) < 100
    assert sandbox.exec("echo $A$B$TOKEN").stdout == "12s3cret\n"
    assert "archive" not in files(engine, sandbox.id)
    kinds = [event.type for event in engine.events(sandbox.id, 0)]
    assert kinds == ["created", "ready", "stopped", "archived", "started"]


def test_a_running_one_is_stopped_first_and_the_next_command_starts_it(engine: Engine) -> None:
    sandbox = create(engine)
    sandbox.processes.spawn("trap 'echo ended > last; exit' TERM; echo > up; while :; do sleep 0.05; done")
    while not sandbox.files.exists("up"):
        time.sleep(0.01)
    assert sandbox.archive().state is State.ARCHIVED
    assert not inventory.processes_of(sandbox.id)
    assert sandbox.exec("cat last").stdout == "ended\n"
    sandbox.archive()
    with pytest.raises(errors.SandboxStopped):
        Sandbox.get(sandbox.id, provider=LocalProvider(engine), auto_start=False).exec("true")
    assert sandbox.info().state is State.ARCHIVED


def test_what_lies_below_stays_where_others_use_it(engine: Engine) -> None:
    first = create(engine)
    first.files.write("below", b"x" * 100_000)
    copy = first.clone()
    copy.files.write("above", b"y")
    first.destroy()
    copy.archive()
    engine.sweep()
    assert archive_file(engine, copy).stat().st_size < 5000
    assert len(trees(engine)) == 2  # the snapshot below, and its record
    assert copy.exec("cat above; wc -c < below").stdout == "y100000\n"


def test_volumes_limits_and_names_are_kept(engine: Engine) -> None:
    sandbox = create(engine, name="cold-one", metadata={"a": "b"})
    before = sandbox.info()
    sandbox.archive()
    assert engine.find("cold-one").state is State.ARCHIVED
    with pytest.raises(errors.Conflict):
        create(engine, name="cold-one")
    sandbox.start()
    after = sandbox.info()
    assert (after.name, after.metadata, after.resources) == (before.name, before.metadata, before.resources)


def test_a_disk_limit_is_in_force_again_and_does_not_keep_files_from_coming_back(engine: Engine) -> None:
    if engine.storage.kind == "directory":
        assert create(engine).info().resources.disk is None
        return
    from skerry.core.models import Resources

    sandbox = create(engine, resources=Resources(disk=20_000_000))
    sandbox.exec("head -c 30000000 /dev/urandom > data; sync", sudo=True)
    held = sandbox.files.stat("data").size
    assert 10_000_000 < held < 20_000_000
    sandbox.archive()
    sandbox.start()
    assert sandbox.files.stat("data").size == held
    more = sandbox.exec("head -c 30000000 /dev/urandom > more; sync more; stat -c %s more", sudo=True)
    assert int(more.stdout.split()[-1]) < 10_000_000


@pytest.mark.parametrize("operation", ["pause", "restart", "reset", "clone", "export_state"])
def test_what_needs_files_says_that_it_is_archived(engine: Engine, operation: str) -> None:
    sandbox = create(engine)
    sandbox.archive()
    with pytest.raises(errors.Conflict) as caught:
        getattr(sandbox, operation)()
    assert "archived" in str(caught.value) and caught.value.hint
    assert sandbox.stop().state is State.ARCHIVED


# -- keys


def test_an_encrypted_archive_takes_its_key_and_changes_nothing_without(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox = create(engine)
    sandbox.files.write("file", b"needle " * 100)
    sandbox.archive(key=KEY)
    stored = archive_file(engine, sandbox).read_bytes()
    assert b"manifest" not in stored
    record = engine.store.read(sandbox.id)
    monkeypatch.delenv("SKERRY_ARCHIVE_KEY", raising=False)
    for attempt in (
        lambda: sandbox.start(),
        lambda: sandbox.start(key=b"x" * 32),
        lambda: sandbox.exec("true"),
    ):
        with pytest.raises(errors.Unauthenticated) as caught:
            attempt()
        assert "SKERRY_ARCHIVE_KEY" in caught.value.hint
    for key in ("file:/nowhere", "env:NOT_SET", "nonsense", b"short"):
        with pytest.raises(errors.InvalidArgument):
            sandbox.start(key=key)
    assert (engine.store.read(sandbox.id), archive_file(engine, sandbox).read_bytes()) == (record, stored)
    assert trees(engine) == []
    monkeypatch.setenv("SKERRY_ARCHIVE_KEY", "env:WRONG")
    monkeypatch.setenv("WRONG", "77" * 32)
    with pytest.raises(errors.Unauthenticated):
        sandbox.start()
    (tmp_path / "key").write_text(KEY.hex())
    monkeypatch.setenv("SKERRY_ARCHIVE_KEY", f"file:{tmp_path}/key")
    assert sandbox.exec("wc -c < file").stdout == "700\n"


def test_the_default_key_encrypts_and_an_archive_of_before_needs_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sealed = create(engine), create(engine)
    plain.archive()
    monkeypatch.setenv("DEFAULT", KEY.hex())
    monkeypatch.setenv("SKERRY_ARCHIVE_KEY", "env:DEFAULT")
    sealed.archive()
    plain.start()
    monkeypatch.delenv("SKERRY_ARCHIVE_KEY")
    with pytest.raises(errors.Unauthenticated):
        sealed.start()
    sealed.start(key=KEY)
    plain.archive()
    with pytest.raises(errors.InvalidArgument, match="not encrypted"):
        plain.start(key=KEY)
    monkeypatch.setenv("SKERRY_ARCHIVE_KEY", "file:/nowhere/key")
    with pytest.raises(errors.InvalidArgument, match="/nowhere/key"):
        sealed.archive()
    assert sealed.info().state is State.RUNNING


# -- damage


def test_a_damaged_archive_is_kept_and_so_is_its_state(engine: Engine) -> None:
    sandbox = create(engine)
    sandbox.exec("head -c 300000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    sandbox.archive()
    file = archive_file(engine, sandbox)
    good = file.read_bytes()
    other = create(engine)
    other.archive()
    swapped = archive_file(engine, other).read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    for bad in (good[:middle], flipped, b"", b"garbage", swapped, good + b"x"):
        file.write_bytes(bad)
        with pytest.raises((errors.Corrupted, errors.InvalidArgument)):
            sandbox.start()
        assert sandbox.info().state is State.ARCHIVED
        assert file.read_bytes() == bad
        assert trees(engine) == []
    file.unlink()
    with pytest.raises(errors.Corrupted, match="missing"):
        sandbox.start()
    file.write_bytes(good)
    assert sandbox.files.hash("data") == before


def test_an_archive_that_does_not_read_back_is_not_trusted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses what was written: the files stay."""
    sandbox = create(engine)
    sandbox.exec("head -c 3000000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    fsync = os.fsync

    def lossy(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_size > 2_900_000:
            os.pwrite(fd, b"\0\0\0\0", 2_500_000)

    monkeypatch.setattr(os, "fsync", lossy)
    with pytest.raises(errors.Corrupted):
        sandbox.archive()
    monkeypatch.undo()
    assert sandbox.info().state is State.STOPPED
    assert files(engine, sandbox.id) == {"lock", "record.json", "events.jsonl"}
    assert sandbox.files.hash("data") == before


def test_without_room_for_the_archive_it_is_stopped_and_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], check=True)
    try:
        monkeypatch.setenv("SKERRY_STORAGE", "directory")
        engine = use(place / "home")
        sandbox = create(engine)
        sandbox.exec("head -c 25000000 /dev/urandom > data", check=True)
        before = sandbox.files.hash("data")
        with pytest.raises(errors.DiskFull):
            sandbox.archive()
        assert sandbox.info().state is State.STOPPED
        assert files(engine, sandbox.id) == {"lock", "record.json", "events.jsonl"}
        assert sandbox.files.hash("data") == before
        sandbox.exec("truncate -s 12000000 data", check=True)
        before = sandbox.files.hash("data")
        sandbox.archive()
        (place / "filler").write_bytes(os.urandom(20_000_000))
        with pytest.raises(errors.DiskFull):
            sandbox.start()
        assert sandbox.info().state is State.ARCHIVED
        assert trees(engine) == []
        (place / "filler").unlink()
        assert sandbox.files.hash("data") == before
        sandbox.destroy()
    finally:
        subprocess.run(["umount", str(place)], check=True)


# -- by itself, and who comes first


def due(engine: Engine, sandbox: Sandbox) -> None:
    """As if nothing had been done in it for long."""
    record = engine.store.read(sandbox.id)
    engine.changes.save(dataclasses.replace(record, last_active_at=time.time() - 1000))


def test_what_was_inactive_for_long_is_archived_by_the_sweep(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = create(engine, auto_archive=500.0)
    sandbox.files.write("file", b"x")
    sandbox.stop()
    due(engine, sandbox)
    monkeypatch.setenv("SKERRY_ARCHIVE_KEY", "file:/nowhere")
    engine.sweep()
    info = sandbox.info()
    assert info.state is State.STOPPED
    assert info.reason is not None and "could not be archived" in info.reason
    monkeypatch.delenv("SKERRY_ARCHIVE_KEY")
    engine.sweep()
    assert (sandbox.info().state, sandbox.info().reason) == (State.ARCHIVED, None)
    assert sandbox.files.read("file") == b"x"


def test_what_was_brought_back_is_not_archived_again_at_once(engine: Engine) -> None:
    sandbox = create(engine, auto_archive=500.0)
    sandbox.stop()
    due(engine, sandbox)
    engine.sweep()
    assert sandbox.info().state is State.ARCHIVED
    engine.archives.unarchive(sandbox.id, None)
    engine.sweep()
    assert sandbox.info().state is State.STOPPED


@pytest.mark.parametrize("by", ["sweep", "hand"])
def test_a_tree_that_can_only_be_removed_in_part_is_never_taken_for_the_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    sandbox = create(engine, auto_archive=500.0)
    sandbox.exec("head -c 100000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    sandbox.stop()
    due(engine, sandbox)
    upper, storage = engine.storage.uppers / sandbox.id, type(engine.storage)
    remove = storage.remove

    def half(self: object, path: Path) -> None:
        if path == upper:
            (upper / "u/workspace/data").unlink(missing_ok=True)
            raise OSError(errno.EBUSY, "busy")
        remove(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "remove", half)
    if by == "sweep":
        engine.sweep()
    else:
        with pytest.raises(OSError, match="busy"):
            sandbox.archive()
    monkeypatch.undo()
    engine.sweep()
    assert sandbox.info().state is State.ARCHIVED
    assert trees(engine) == []
    assert sandbox.files.hash("data") == before


def test_what_cannot_be_archived_is_not_tried_by_every_sweep(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all its files in vain again would hold up every command."""
    sandbox = create(engine, auto_archive=500.0)
    sandbox.exec("mkdir -p $(yes d | head -n 300 | tr '\\n' /)", check=True)
    sandbox.stop()
    due(engine, sandbox)
    tried, write = list[float](), skerry.archive.write_archive

    def counted(*args: object, **options: object) -> object:
        tried.append(time.time())
        return write(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(skerry.archive, "write_archive", counted)
    for _ in range(3):
        engine.sweep()
    info = sandbox.info()
    assert (len(tried), info.state) == (1, State.STOPPED)
    assert info.reason is not None and "deeper than 256" in info.reason
    record = engine.store.read(sandbox.id)
    assert record.archive_failed_at is not None
    engine.changes.save(dataclasses.replace(record, archive_failed_at=record.archive_failed_at - 3700))
    engine.sweep()
    assert len(tried) == 2
    with pytest.raises(errors.Unsupported):  # whoever asks for it is told at once
        sandbox.archive()
    sandbox.exec("rm -r d", check=True)
    assert sandbox.archive().state is State.ARCHIVED


@pytest.mark.parametrize("moment", ["stopped", "complete", "archived", "restoring", "unpacked", "restored"])
def test_who_died_at_it_leaves_it_whole(engine: Engine, moment: str) -> None:
    """Each state that a crash can leave, made by hand."""
    sandbox = create(engine)
    sandbox.exec("head -c 100000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    sandbox.stop()
    upper, file = engine.storage.uppers / sandbox.id, archive_file(engine, sandbox)
    fresh, _ = restoring_trees(upper)
    if moment == "stopped":
        engine.changes.begin(engine.store.read(sandbox.id), "archive")
        file.with_suffix(".new").write_bytes(b"a part")
    elif moment == "complete":
        engine.changes.begin(engine.store.read(sandbox.id), "archive")
        engine.archives._write(engine.store.read(sandbox.id), file, None)
    else:
        engine.storage.copy(upper, fresh)
        sandbox.archive()
        record = engine.store.read(sandbox.id)
        if moment == "archived":
            fresh.rename(upper)
            engine.changes.begin(record, "archive")
        elif moment == "restoring":
            engine.changes.begin(record, "unarchive", state=State.RESTORING)
        else:
            fresh.rename(upper)
            record = engine.changes.begin(record, "unarchive", state=State.RESTORING)
            if moment == "restored":
                engine.changes.begin(record, "unarchive", state=State.STOPPED)
    engine.sweep()
    expected = State.STOPPED if moment in ("stopped", "complete", "restored") else State.ARCHIVED
    assert engine.get(sandbox.id).state is expected
    there = {"lock", "record.json", "events.jsonl"}
    assert files(engine, sandbox.id) == (there if expected is State.STOPPED else there | {"archive"})
    assert trees(engine) == ([f"uppers/{sandbox.id}"] if expected is State.STOPPED else [])
    assert sandbox.files.hash("data") == before


@pytest.mark.parametrize("what", ["archive", "unarchive"])
def test_cancelled_in_the_middle_it_is_as_it_was(engine: Engine, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    sandbox = create(engine)
    sandbox.exec("head -c 8000000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    if what == "unarchive":
        sandbox.archive()
    there = files(engine, sandbox.id) & {"lock", "record.json", "events.jsonl", "archive"}
    write, unpack = skerry.archive.write_archive, Archive.unpack
    done = list[int]()

    async def cancel() -> None:
        loop, at_work, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def slow(work: Callable[..., object]) -> Callable[..., object]:
            def with_progress(*args: object, on_progress: Callable[[int], None], **options: object) -> object:
                def tell(so_far: int) -> None:
                    loop.call_soon_threadsafe(at_work.set)
                    assert go_on.wait(30)
                    done.append(so_far)
                    on_progress(so_far)

                return work(*args, on_progress=tell, **options)

            return with_progress

        monkeypatch.setattr(skerry.archive, "write_archive", slow(write))
        monkeypatch.setattr(Archive, "unpack", slow(unpack))
        task = asyncio.create_task(getattr(LocalProvider(engine), what)(sandbox.id))
        await asyncio.wait_for(at_work.wait(), 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    monkeypatch.undo()
    assert len(done) == 1
    assert sandbox.info().state is (State.STOPPED if what == "archive" else State.ARCHIVED)
    assert files(engine, sandbox.id) == there
    assert trees(engine) == ([f"uppers/{sandbox.id}"] if what == "archive" else [])
    assert sandbox.files.hash("data") == before


class Disk:
    """What of a sandbox's folder would be there after a power cut: what was flushed, and has not changed since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Engine, sandbox: Sandbox) -> None:
        self.folder = engine.store.directory(sandbox.id)
        self._flushed: dict[int, tuple[int, int]] = {}
        self._upper = engine.storage.uppers / sandbox.id
        self.upper = False
        fsync, flush = os.fsync, archive.flush

        def noted_fsync(fd: int) -> None:
            fsync(fd)
            info = os.fstat(fd)
            self._flushed[info.st_ino] = (info.st_mtime_ns, info.st_size)

        def noted_flush(path: Path) -> None:
            flush(path)
            self.upper = self._upper.exists()

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(archive, "flush", noted_flush)

    def has(self, *names: str) -> bool:
        """Both what is in these files and that they have these names."""
        infos = [(self.folder / name).stat() for name in (".", *names)]
        return all(self._flushed.get(info.st_ino) == (info.st_mtime_ns, info.st_size) for info in infos)


def test_nothing_is_removed_before_what_takes_its_place_is_on_disk(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = create(engine)
    sandbox.exec("head -c 100000 /dev/urandom > data", check=True)
    before = sandbox.files.hash("data")
    upper, file = engine.storage.uppers / sandbox.id, archive_file(engine, sandbox)
    disk, seen = Disk(monkeypatch, engine, sandbox), list[tuple[str, State, bool]]()
    storage = type(engine.storage)
    remove, unlink = storage.remove, Path.unlink

    def noted_remove(self: object, path: Path) -> None:
        record = engine.store.read(sandbox.id)
        if path == upper and path.exists():
            seen.append(("tree", record.state, disk.has("record.json", "archive")))
        remove(self, path)  # type: ignore[arg-type]

    def noted_unlink(self: Path, missing_ok: bool = False) -> None:
        if self == file and self.exists():
            seen.append(("archive", engine.store.read(sandbox.id).state, disk.upper and disk.has("record.json")))
        unlink(self, missing_ok)

    monkeypatch.setattr(storage, "remove", noted_remove)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    sandbox.archive()
    assert disk.has("record.json", "archive")
    engine.archives.unarchive(sandbox.id, None)
    assert disk.has("record.json")
    assert seen == [("tree", State.ARCHIVED, True), ("archive", State.STOPPED, True)]
    monkeypatch.undo()
    assert sandbox.files.hash("data") == before


def test_several_at_once_archive_start_and_destroy_the_same_one(engine: Engine) -> None:
    """Every outcome is one that some order of them gives."""
    sandbox = create(engine)
    sandbox.exec("head -c 500000 /dev/urandom > data", check=True)
    before, wrong = sandbox.files.hash("data"), list[BaseException]()

    def work(verb: str, rounds: int) -> None:
        mine = use(engine.store.home)
        for _ in range(rounds):
            try:
                if verb == "archive":
                    mine.archives.archive(sandbox.id, None)
                else:
                    mine.lifecycle.start(sandbox.id)
            except errors.Conflict:
                pass
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(verb, 4)) for verb in ("archive", "start", "archive", "start")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sandbox.files.hash("data") == before
    program = (
        "import sys; from skerry.providers.local.engine import Engine; from pathlib import Path\n"
        "from skerry.core.errors import SandboxNotFound\n"
        "engine = Engine(Path(sys.argv[1]))\n"
        "try:\n    getattr(engine.archives, 'archive')(sys.argv[2], None)\nexcept SandboxNotFound:\n    print('gone')\n"
    )
    archiving = subprocess.Popen([sys.executable, "-c", program, str(engine.store.home), sandbox.id])
    engine.destroy(sandbox.id)
    assert archiving.wait(60) == 0
    with pytest.raises(errors.SandboxNotFound):
        engine.get(sandbox.id)
    assert trees(engine) == []


def test_a_spec_that_asks_for_it_is_granted(engine: Engine) -> None:
    assert engine.creation.grant(SandboxSpec(auto_archive=5.0)) == engine.creation.grant(SandboxSpec())
    assert box(engine, engine.create(SandboxSpec(auto_archive=900.0, timeout=60)).id).info().state is State.RUNNING
