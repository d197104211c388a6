"""State as a file: what is carried from one SKERRY_HOME to another, what is refused, and that a failure leaves nothing."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from skerry import Key, Sandbox
from skerry.archive import JSON, Manifest, crypt, open_archive, write_archive
from skerry.core import errors
from skerry.core.models import ExportInfo, Resources, SandboxSpec, State, VolumeMount
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.providers.local.sandbox.archive import COLD
from skerry.providers.local.storage import export_manifest
from tests import inventory
from tests.conftest import unmount_below
from tests.providers.local.homes import blocks, box, create, fill, inside, outside, own, trees, use

KEY = b"k" * 32
Homes = Callable[[str], Engine]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """Engines by the name of their SKERRY_HOME, which begins with the kind of its storage."""
    root, made = tmp_path_factory.mktemp("states"), dict[str, Engine]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKERRY_POOL_SIZE", "1GB")

        def engine(name: str) -> Engine:
            if name not in made:
                patch.setenv("SKERRY_STORAGE", name.partition("-")[0])
                made[name] = use(root / name)
                assert made[name].storage.kind == name.partition("-")[0]
            return made[name]

        yield engine
    unmount_below(root)


@pytest.fixture
def engine(homes: Homes) -> Iterator[Engine]:
    yield from clean(homes("pool-here"))


@pytest.fixture
def other(homes: Homes) -> Iterator[Engine]:
    """Where states are imported."""
    yield from clean(homes("pool-there"))


def clean(engine: Engine) -> Iterator[Engine]:
    before = inventory.take(engine.store.home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    for kept in engine.snapshots.list():
        engine.snapshots.delete(kept.id)
    assert inventory.left(before, inventory.settle(engine.store.home, before)) == {}
    assert trees(engine) == []


def export(engine: Engine, source: str, key: bytes | None = None) -> tuple[bytes, ExportInfo]:
    target = io.BytesIO()
    info = engine.exports.export(source, target, key, None)
    return target.getvalue(), info


def import_(engine: Engine, data: bytes | BinaryIO, key: bytes | None = None, **options: object) -> Sandbox:
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    spec = SandboxSpec(timeout=600, **options)  # type: ignore[arg-type]
    return box(engine, engine.exports.import_(source, spec, key, None).id)


def made_by_hand(tree: Path, layers: int = 1, kind: str = export_manifest.KIND, **changes: JSON) -> bytes:
    """A file as `export` writes it, but for `changes` of its manifest."""
    tree.mkdir(exist_ok=True)
    about: dict[str, JSON] = {
        "skerry": "1",
        "source": "sb-aaaaaaaaaa",
        "source_kind": "sandbox",
        "created_at": 1.0,
        "template": "host",
        "user": "user",
        "workdir": "/workspace",
        "env": {},
        "resources": {},
        "ports": [],
        "metadata": {},
        "labels": {},
    }
    target = io.BytesIO()
    write_archive(target, about | changes, [tree] * layers, kind=kind)
    return target.getvalue()


# -- what is carried


@pytest.mark.parametrize(
    "way", [("pool-here", "pool-there"), ("pool-here", "directory-there"), ("directory-here", "pool-there")]
)
def test_a_clone_of_a_clone_is_the_same_in_another_home(homes: Homes, way: tuple[str, str]) -> None:
    here, there = homes(way[0]), homes(way[1])
    first = create(here)
    fill(first)
    first.exec("mkdir marks && touch marks/.wh..opq marks/.wh.kept marks/kept", check=True)
    second = first.clone()
    second.exec("rm marks/.wh..opq marks/.wh.kept", check=True)  # names like marks, gone: `kept` is not
    second.exec("rm -r tree/deep; echo second > second; rm /usr/local/none; rm -rf /etc/hosts", sudo=True)
    third = second.clone()
    third.exec("echo third > third; rm second; mkdir tree/deep", sudo=True, check=True)
    data, info = export(here, third.id)
    assert (info.layers, info.source, info.encrypted) == (3, third.id, False)
    # 3 = its own, and those of the two snapshots below
    before = [own(here, third.id), *outside(here, third.id)]
    copy = import_(there, data)
    assert outside(there, copy.id) == before
    seen = inside(third)
    assert seen == inside(copy)
    assert blocks(copy) <= blocks(third) < 100
    assert not any("second" in line or "hosts" in line for line in seen)
    assert any(line.startswith("tree/setuid|f|4711|0|0|") for line in seen)
    assert [line.partition("|")[0] for line in seen if line.startswith("marks/")] == ["marks/kept"]
    copy.exec("test ! -e /etc/hosts && test ! -e second && test -p tree/fifo && test ! -e tree/socket", check=True)
    for sandbox in (first, second, third, copy):
        sandbox.destroy()
    assert (trees(here), trees(there)) == ([], [])


def test_an_import_can_be_changed_cloned_and_exported_again(engine: Engine, other: Engine) -> None:
    source = create(engine)
    fill(source)
    copy = import_(other, export(engine, source.id)[0])
    again = import_(engine, export(other, copy.clone().id)[0])
    assert inside(again) == inside(source)
    copy.exec("rm -r tree; echo new > /etc/hosts", sudo=True, check=True)
    copy.reset(hard=True)
    assert inside(copy) == inside(source)


def test_variables_and_the_like_are_carried_and_secrets_never(engine: Engine, other: Engine) -> None:
    source = create(
        engine,
        env={"A": "one", "B": "two"},
        secrets={"TOKEN": "s3cret-value"},
        metadata={"team": "x"},
        labels={"tier": "y"},
        user="root",
        workdir="/srv",
        resources=Resources(memory=300_000_000, pids=77),
    )
    source.env.set("B", "changed")
    data, info = export(engine, source.id)
    assert sorted(info.env_names) == ["A", "B"]
    with open_archive(io.BytesIO(data)) as archive:
        assert "s3cret" not in repr(archive.manifest) and "TOKEN" not in repr(archive.manifest)
    copy = import_(other, data, name="copy")
    got = copy.info()
    assert (got.metadata, got.labels, got.user, got.workdir, got.name) == (
        {"team": "x"},
        {"tier": "y"},
        "root",
        "/srv",
        "copy",
    )
    assert (got.resources.memory, got.resources.pids, got.resources.cpu) == (300_000_000, 77, 2.0)
    assert copy.exec("echo $A $B $TOKEN; id -un; pwd").stdout == "one changed\nroot\n/srv\n"


def test_what_is_asked_for_goes_over_what_is_in_the_file(engine: Engine, other: Engine) -> None:
    source = create(engine, env={"A": "1", "B": "2"}, labels={"old": "x"}, resources=Resources(memory=300_000_000))
    copy = import_(
        other,
        export(engine, source.id)[0],
        env={"B": "new"},
        labels={"new": "y"},
        user="root",
        resources=Resources(pids=99),
    )
    got = copy.info()
    assert (got.labels, got.user) == ({"new": "y"}, "root")
    assert (got.resources.memory, got.resources.pids) == (300_000_000, 99)
    assert copy.exec("echo $A$B").stdout == "1new\n"


def test_a_snapshot_is_a_file_too_and_later_changes_are_not_in_it(engine: Engine, other: Engine) -> None:
    source = create(engine, env={"A": "1"})
    source.files.write("then", b"x")
    taken = source.snapshots.create("moment")
    source.files.write("later", b"x")
    data, info = export(engine, taken.id)
    assert (info.source, info.env_names) == (taken.id, ("A",))
    copy = import_(other, data)
    assert [found.name for found in copy.files.list("/workspace")] == ["then"]
    assert copy.exec("echo $A").stdout == "1\n"
    with pytest.raises(errors.SnapshotNotFound):
        export(engine, "sn-aaaaaaaaaa")
    with pytest.raises(errors.SandboxNotFound):
        export(engine, "sb-aaaaaaaaaa")


def test_a_sandbox_goes_on_while_it_is_exported_and_the_file_is_of_one_moment(engine: Engine, other: Engine) -> None:
    source = create(engine)
    source.exec("head -c 3000000 /dev/urandom > data", check=True)

    class Target(io.BytesIO):
        worked = 0

        def write(self, data: object) -> int:  # type: ignore[override]
            source.exec("echo more >> data; echo x > new", timeout=30, check=True)
            Target.worked += 1
            return super().write(data)  # type: ignore[arg-type]

    target = Target()
    engine.exports.export(source.id, target, None, None)
    assert Target.worked > 1
    copy = import_(other, target.getvalue())
    assert copy.files.stat("data").size == 3_000_000
    assert not copy.files.exists("new")


@pytest.mark.parametrize("state", ["stop", "pause"])
def test_one_that_does_not_run_is_exported_as_it_is(engine: Engine, other: Engine, state: str) -> None:
    source = create(engine)
    source.files.write("file", b"x")
    getattr(source, state)()
    data, _ = export(engine, source.id)
    assert source.info().state == {"stop": State.STOPPED, "pause": State.PAUSED}[state]
    assert import_(other, data).files.read("file") == b"x"


def test_an_encrypted_file_needs_its_key(engine: Engine, other: Engine) -> None:
    source = create(engine)
    source.files.write("file", b"needle in the file")
    data, info = export(engine, source.id, KEY)
    assert info.encrypted and b"manifest" not in data
    for key in (None, b"x" * 32):
        with pytest.raises(errors.Unauthenticated) as caught:
            import_(other, data, key)
        assert caught.value.hint
    with pytest.raises(errors.InvalidArgument):
        import_(other, export(engine, source.id)[0], KEY)
    assert trees(other) == []
    assert import_(other, data, KEY).files.read("file") == b"needle in the file"


# -- what is refused


def test_a_damaged_file_makes_nothing(engine: Engine, other: Engine) -> None:
    source = create(engine)
    source.exec("mkdir many; for n in $(seq 200); do head -c 2000 /dev/urandom > many/$n; done", check=True)
    chance = random.Random(7)
    for key in (None, KEY):
        data, _ = export(engine, source.id, key)
        broken = [data[: chance.randrange(1, len(data))] for _ in range(6)] + [data[:-1], data + b"x"]
        for _ in range(8):
            at = chance.randrange(8, len(data))
            broken.append(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])
        for each in broken:
            with pytest.raises((errors.Corrupted, errors.InvalidArgument, errors.Unauthenticated)):
                import_(other, each, key)
            assert trees(other) == []
            assert other.list() == []
        assert import_(other, data, key).files.hash("many") == source.files.hash("many")
        for info in other.list():
            other.destroy(info.id)


def test_chunks_of_an_encrypted_file_that_are_cut_swapped_or_exchanged_make_nothing(
    engine: Engine, other: Engine
) -> None:
    source = create(engine)
    source.exec("head -c 2500000 /dev/urandom > data", check=True)
    data, _ = export(engine, source.id, KEY)
    step = crypt.CHUNK + crypt.TAG
    head = data[: crypt.HEADER_SIZE]
    first, second, last = (data[at : at + step] for at in range(crypt.HEADER_SIZE, len(data), step))
    another = export(engine, source.id, KEY)[0][: crypt.HEADER_SIZE]
    for broken, error in (
        (head, errors.Corrupted),
        (head + first, errors.Corrupted),
        (head + first + second, errors.Corrupted),
        (head + second + first + last, errors.Corrupted),
        (head + first + second + last[:-1], errors.Corrupted),
        (head + first + second + last + last, errors.Corrupted),
        (another + first + second + last, errors.Corrupted),
        (head[:-1] + bytes([head[-1] ^ 1]) + first + second + last, errors.Unauthenticated),
        (head[:9] + b"\x02" + head[10:] + first + second + last, errors.Unsupported),
    ):
        with pytest.raises(error):
            import_(other, broken, KEY)
        assert (trees(other), other.list()) == ([], [])


@pytest.mark.parametrize("data", [b"", b"garbage" * 1000, bytes(5000), b"\x28\xb5\x2f\xfd" + b"x" * 5000])
def test_garbage_is_told_from_a_file(other: Engine, data: bytes) -> None:
    with pytest.raises((errors.InvalidArgument, errors.Corrupted)):
        import_(other, data)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"template": "no-such-template"}, errors.TemplateNotFound),
        ({"template": "../../etc"}, errors.TemplateNotFound),
        ({"template": None}, errors.Corrupted),
        ({"user": ""}, errors.Corrupted),
        ({"user": "a\0b"}, errors.Corrupted),
        ({"workdir": "relative"}, errors.Corrupted),
        ({"workdir": 7}, errors.Corrupted),
        ({"env": ["A"]}, errors.Corrupted),
        ({"env": {"A=B": "x"}}, errors.Corrupted),
        ({"env": {"A": "x\0y"}}, errors.Corrupted),
        ({"env": {"A": 7}}, errors.Corrupted),
        ({"metadata": {"": "x"}}, errors.Corrupted),
        ({"labels": {str(number): "x" for number in range(5000)}}, errors.Corrupted),
        ({"resources": {"memory": -1}}, errors.Corrupted),
        ({"resources": {"memory": True}}, errors.Corrupted),
        ({"resources": {"cpu": "many"}}, errors.Corrupted),
        ({"resources": {"memory": 10**15}}, errors.QuotaExceeded),
        ({"ports": [70000]}, errors.Corrupted),
        ({"created_at": "now"}, errors.Corrupted),
        ({"created_at": 10**400}, errors.Corrupted),
        ({"resources": {"cpu": 10**400}}, errors.Corrupted),
        ({"resources": {"memory": 10**400}}, errors.Corrupted),
        ({"template": "x@../../../../etc/passwd"}, errors.TemplateNotFound),
        ({"template": "\ud800"}, errors.Corrupted),
        ({"user": "\ud800"}, errors.Corrupted),
        ({"workdir": "/\ud800"}, errors.Corrupted),
        ({"env": {"A": "\ud800"}}, errors.Corrupted),
        ({"env": {"\ud800": "A"}}, errors.Corrupted),
        ({"metadata": {"A": "\ud800"}}, errors.Corrupted),
    ],
)
def test_a_manifest_is_checked_before_anything_is_made(
    other: Engine, tmp_path: Path, changes: dict[str, JSON], error: type[Exception]
) -> None:
    with pytest.raises(error):
        import_(other, made_by_hand(tmp_path / "tree", **changes))
    assert trees(other) == []


def test_other_kinds_of_archives_and_too_many_layers_are_refused(other: Engine, tmp_path: Path) -> None:
    for data, error in (
        (made_by_hand(tmp_path / "a", kind=COLD), errors.InvalidArgument),
        (made_by_hand(tmp_path / "a", kind="else"), errors.InvalidArgument),
        (made_by_hand(tmp_path / "a", layers=0), errors.Corrupted),
        (made_by_hand(tmp_path / "a", layers=18), errors.Unsupported),
    ):
        with pytest.raises(error):
            import_(other, data)
    with pytest.raises(errors.Unsupported) as caught:
        import_(other, made_by_hand(tmp_path / "a"), idempotency_key="x")
    assert caught.value.option == "idempotency_key"
    assert import_(other, made_by_hand(tmp_path / "a", layers=17)).exec("echo works").stdout == "works\n"


def test_a_bomb_ends_at_the_disk_limit(
    other: Engine, homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with (tree / "zeros").open("wb") as file:
        for _ in range(20):
            file.write(bytes(1 << 20))
    data = made_by_hand(tree)
    assert len(data) < 20_000
    with pytest.raises(errors.QuotaExceeded):
        import_(other, data, resources=Resources(disk=8 << 20))
    monkeypatch.setenv("SKERRY_DISK", "8MiB")
    monkeypatch.setenv("SKERRY_MAX_DISK", "8MiB")
    for engine in (other, homes("directory-there")):
        with pytest.raises(errors.QuotaExceeded):
            import_(engine, data)
        assert trees(engine) == []


def test_what_create_would_refuse_is_refused_before_the_file_is_read(
    engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = create(engine)
    source.exec("head -c 3000000 /dev/urandom > data", check=True)
    data, _ = export(engine, source.id)
    taken = create(other, name="taken")
    for options, error in (
        ({"name": "taken"}, errors.Conflict),
        ({"volumes": (VolumeMount(name="none", path="/data"),)}, errors.VolumeNotFound),
        ({"template": "none"}, errors.TemplateNotFound),
        ({"idempotency_key": "key"}, errors.Unsupported),
        ({"resources": Resources(memory=10**18)}, errors.QuotaExceeded),
    ):
        file = io.BytesIO(data)
        with pytest.raises(error):
            import_(other, file, **options)
        assert file.tell() < 1_000_000
    with monkeypatch.context() as patch:
        # Somebody else takes the name while the file is read.
        patch.setattr(type(other.store), "require_free", lambda self, spec: None)
        with pytest.raises(errors.Conflict):
            import_(other, data, name="taken")
    taken.destroy()
    assert trees(other) == []


# -- what fails in the middle


class Failing(io.RawIOBase):
    """Takes some bytes, then fails as a disk or a pipe does."""

    def __init__(self, room: int, error: BaseException) -> None:
        self.room, self.error = room, error

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        self.room -= size
        if self.room < 0:
            raise self.error
        return size


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), errors.DiskFull),
        (BrokenPipeError(errno.EPIPE, "gone"), BrokenPipeError),
        (RuntimeError("own"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_target_that_fails_leaves_nothing(
    engine: Engine, error: BaseException, expected: type[BaseException]
) -> None:
    source = create(engine)
    source.exec("head -c 2000000 /dev/urandom > data", check=True)
    before = trees(engine)
    for room in (0, 1_000_000):
        with pytest.raises(expected):
            engine.exports.export(source.id, Failing(room, error), None, None)  # type: ignore[arg-type]
        assert trees(engine) == before
    assert source.exec("wc -c < data").stdout == "2000000\n"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_in_the_middle_leaves_nothing(engine: Engine, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create(engine)
    source.exec("head -c 40000000 /dev/urandom > data", check=True)
    before = trees(engine)
    (small / "out").write_bytes(b"what was there")
    with pytest.raises(errors.DiskFull):
        source.export_state(small / "out")
    assert [path.name for path in small.iterdir()] == ["out"]
    assert (small / "out").read_bytes() == b"what was there"
    assert trees(engine) == before
    data, _ = export(engine, source.id)
    monkeypatch.setenv("SKERRY_STORAGE", "directory")
    full = use(small / "home")
    with pytest.raises(errors.DiskFull):
        import_(full, data)
    assert (trees(full), full.list()) == ([], [])
    assert subprocess.run(["du", "-sm", str(small)], capture_output=True, text=True, check=True).stdout < "3"


@pytest.mark.parametrize("what", ["export", "import"])
def test_cancelled_in_the_middle_nothing_is_left(engine: Engine, other: Engine, what: str) -> None:
    source = create(engine)
    source.exec("head -c 8000000 /dev/urandom > data", check=True)
    data, _ = export(engine, source.id)
    before, reached = trees(engine), threading.Event()

    async def cancel() -> None:
        loop, at_work, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def tell(done: int) -> None:
            loop.call_soon_threadsafe(at_work.set)
            reached.set()
            assert go_on.wait(30)

        if what == "export":
            task = asyncio.create_task(
                LocalProvider(engine).export_state(source.id, io.BytesIO(), key=None, on_progress=tell)
            )
        else:
            task = asyncio.create_task(
                LocalProvider(other).import_state(io.BytesIO(data), SandboxSpec(), key=None, on_progress=tell)
            )
        await asyncio.wait_for(at_work.wait(), 30)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert reached.is_set()
    assert (trees(engine), trees(other), other.list()) == (before, [], [])


def test_a_sweep_during_an_import_takes_nothing_of_it(engine: Engine, other: Engine) -> None:
    source = create(engine)
    source.exec("head -c 3000000 /dev/urandom > data", check=True)
    data, _ = export(engine, source.id)

    class Sweeping(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            Engine(other.store.home).sweep()
            return super().read(size)

    copy = import_(other, Sweeping(data))
    other.sweep()
    assert copy.files.hash("data") == source.files.hash("data")


def test_a_key_is_in_no_record_and_no_log(engine: Engine) -> None:
    source = create(engine)
    key = Key.generate()
    export(engine, source.id, key.secret())
    source.archive(key=key)
    for root, _, files in os.walk(engine.store.directory(source.id)):
        for file in files:
            data = Path(root, file).read_bytes()
            assert key.secret() not in data and key.hex().encode() not in data


def test_a_manifest_says_what_it_was(engine: Engine) -> None:
    from skerry import __version__

    source = create(engine)
    data, info = export(engine, source.id)
    with open_archive(io.BytesIO(data)) as archive:
        manifest: Manifest = archive.manifest
        totals = archive.verify()
    about = export_manifest.parse(manifest)
    assert (about.skerry, about.source, about.source_kind, about.template) == (
        __version__,
        source.id,
        "sandbox",
        "host",
    )
    assert (totals.sha256, len(data)) == (info.sha256, info.bytes_written)
