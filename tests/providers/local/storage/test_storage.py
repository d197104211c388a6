"""The storage of a SKERRY_HOME: kinds, limits, and what happens when it is full, missing, damaged, or taken away."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors
from skerry.core.models import Resources, SandboxSpec
from skerry.providers.local import LocalProvider, storage_commands
from skerry.providers.local.engine import Engine
from skerry.providers.local.storage import btrfs, choose, pool
from skerry.providers.local.storage.pool import PoolStorage
from tests import inventory

MB = 10**6


def write(tree: Path, size: int) -> None:
    """Fill a file of `tree` with `size` bytes that are on disk afterwards. Raises OSError."""
    with (tree / "data").open("wb") as file:
        for _ in range(size // MB):
            file.write(os.urandom(MB))
            file.flush()
            os.fsync(file.fileno())


def box(engine: Engine, **options: object) -> Sandbox:
    return Sandbox.create(LocalProvider(engine), **options)  # type: ignore[arg-type]


# -- who may write to it


@pytest.mark.parametrize(("owner", "mode"), [(12345, 0o700), (12345, 0o755), (0, 0o777), (0, 0o1777), (0, 0o770)])
def test_a_home_that_others_can_change_is_refused(own_home: Path, owner: int, mode: int) -> None:
    own_home.mkdir()
    os.chown(own_home, owner, owner)
    own_home.chmod(mode)
    with pytest.raises(errors.ProviderUnavailable, match=f"SKERRY_HOME {own_home} ") as caught:
        Engine(own_home).create(SandboxSpec())
    assert "set SKERRY_HOME" in caught.value.hint
    assert os.listdir(own_home) == []
    os.chown(own_home, 0, 0)
    own_home.chmod(0o755)  # who may only look is kept out of what is in it
    Engine(own_home).prepare()


def test_a_link_to_a_home_that_others_can_change_is_refused(own_home: Path, tmp_path: Path) -> None:
    own_home.mkdir()
    link = tmp_path / "link"
    link.symlink_to(own_home)
    Engine(link).prepare()
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(errors.ProviderUnavailable, match="belongs to user 12345"):
        Engine(link).prepare()


def test_programs_and_devices_in_the_pool_are_none_to_the_machine(ready: Engine) -> None:
    wanted = os.ST_NOSUID | os.ST_NODEV
    assert os.statvfs(ready.storage.root).f_flag & wanted == wanted
    remount = ["mount", "-o", "remount,bind,noatime,suid,dev", str(ready.storage.root)]
    with box(ready) as sandbox:
        subprocess.run(remount, check=True)  # as another version of Skerry may have left it
        assert os.statvfs(ready.storage.root).f_flag & wanted == wanted  # by the next use
        assert sandbox.exec("echo on").stdout == "on\n"


# -- limits


def test_the_first_limit_of_a_new_pool_holds(own_home: Path) -> None:
    own_home.mkdir()
    made = choose.open_storage(own_home)
    made.create(made.uppers / "a", 20 * MB)
    with pytest.raises(OSError, match="quota"):
        write(made.uppers / "a", 50 * MB)
    made.set_limit(made.uppers / "a", 60 * MB)
    write(made.uppers / "a", 50 * MB)
    made.remove(made.uppers / "a")
    made.remove(made.uppers / "a")  # is no error


def test_a_sandbox_over_its_disk_limit_fails_inside_typed_outside_and_goes_on(ready: Engine) -> None:
    with box(ready, resources={"disk": "200MB"}) as sandbox:
        result = sandbox.exec("head -c 300000000 /dev/zero > big", timeout=120)
        assert not result.ok
        assert "quota exceeded" in result.stderr.lower() or "no space" in result.stderr.lower()
        with pytest.raises(errors.DiskFull):
            sandbox.files.write("more", b"x" * 5 * MB)
        assert 180 * MB < sandbox.files.stat("big").size <= 200 * MB
        assert sandbox.exec("rm big && head -c 150000000 /dev/zero > big && stat -c %s big").stdout == "150000000\n"
        assert sandbox.usage().disk_total == 200 * MB


@pytest.mark.parametrize("how", ["restart", "stop", "kill", "reset"])
def test_a_sandbox_that_is_full_starts_again_and_can_be_cleared(ready: Engine, how: str) -> None:
    fill = (
        "head -c 100000000 /dev/zero > big; sync; i=0; while echo x > small$i; do i=$((i+1)); done; sync; ! echo x > no"
    )
    with box(ready, resources={"disk": "30MB"}) as sandbox:
        assert sandbox.exec(fill, timeout=120).ok
        if how == "restart":
            sandbox.restart()
        elif how == "reset":
            sandbox.reset()
        elif how == "stop":
            sandbox.stop()
            sandbox.start()
        else:
            found = ready.store.read(sandbox.id).init
            assert found is not None and found.kill(10)
            sandbox.recover()
        assert not sandbox.exec("head -c 2000000 /dev/zero > more").ok  # the limit is what it was
        done = sandbox.exec("rm -f big more && sync && head -c 20000000 /dev/zero > again && stat -c %s again")
        assert done.stdout == "20000000\n", done.stderr
        assert not sandbox.exec("head -c 30000000 /dev/zero > more").ok


def test_a_tree_goes_with_the_subvolumes_that_somebody_made_in_it(own_home: Path) -> None:
    own_home.mkdir()
    made = choose.open_storage(own_home)
    tree = made.uppers / "a"
    made.create(tree, 20 * MB)
    for number in range(3):
        (tree / f"d{number}").mkdir()
        btrfs.create(tree / f"d{number}" / "inner")
        btrfs.create(tree / f"d{number}" / "inner" / "most")
        (tree / f"d{number}" / "inner" / "most" / "file").write_text("x")
    assert len(btrfs.nested(tree)) == 6
    made.remove(tree)
    assert not tree.exists()


def test_a_disk_limit_can_be_changed_while_it_runs(ready: Engine) -> None:
    with box(ready, resources={"disk": "20MB"}) as sandbox:
        assert not sandbox.exec("head -c 50000000 /dev/zero > big").ok
        assert sandbox.set_limits(disk="80MB").resources.disk == 80 * MB
        assert sandbox.exec("head -c 50000000 /dev/zero > big && sync").ok
        sandbox.set_limits(disk="10MB")  # less than it has: it keeps that, and writes nothing new
        assert not sandbox.exec("echo x > new").ok
        assert sandbox.files.stat("big").size == 50 * MB
        assert sandbox.exec("rm big && sync && echo x > new", user="root").ok
        for wrong, error in (("100TB", errors.QuotaExceeded), (1, errors.InvalidArgument)):
            with pytest.raises(error):
                sandbox.set_limits(disk=wrong)
        assert sandbox.info().resources.disk == 10 * MB


def test_the_default_limit_is_that_of_the_environment(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_DISK", "30MB")
    monkeypatch.setenv("SKERRY_MAX_DISK", "40MB")
    with box(ready) as sandbox:
        assert sandbox.info().resources.disk == 30 * MB
        assert not sandbox.exec("head -c 35000000 /dev/zero > big").ok
    with pytest.raises(errors.QuotaExceeded):
        box(ready, resources={"disk": "41MB"})
    with pytest.raises(errors.InvalidArgument):
        box(ready, resources={"disk": 1000})


def test_accounts_of_removed_trees_do_not_pile_up(ready: Engine) -> None:
    trees = ready.storage
    for number in range(3 * pool._SWEEP_EVERY):
        trees.create(trees.uppers / f"t{number}", MB)
        trees.remove(trees.uppers / f"t{number}")
    deadline = time.monotonic() + 60
    while os.listdir(trees.root / "gone") and time.monotonic() < deadline:
        subprocess.run(["btrfs", "filesystem", "sync", trees.root], check=True)  # the kernel takes them apart
        trees.sweep()
    assert os.listdir(trees.root / "gone") == []
    assert len(list(btrfs._qgroups(trees.root).glob("0_*"))) < 8


def test_directories_refuse_a_limit_and_keep_sandboxes_working(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_STORAGE", "directory")
    engine = Engine(own_home)
    engine.prepare()
    before = inventory.take(own_home)
    with pytest.raises(errors.Unsupported) as caught:
        box(engine, resources={"disk": "1GB"})
    assert caught.value.option == "resources.disk"
    with box(engine) as sandbox:
        assert sandbox.exec("echo kept > f; cat f").stdout == "kept\n"
        assert sandbox.info().resources.disk is None
        assert sandbox.usage().disk_used is not None  # what df says inside
        with pytest.raises(errors.Unsupported):
            sandbox.set_limits(disk="1GB")
    assert inventory.left(before, inventory.settle(own_home, before)) == {}
    monkeypatch.delenv("SKERRY_STORAGE")
    assert choose.open_storage(own_home).kind == "directory"  # the first use has decided


# -- a home on btrfs


@pytest.fixture
def btrfs_home(tmp_path: Path) -> Iterator[Path]:
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(600 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-m", "single", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    yield place / "home"
    subprocess.run(["umount", place], check=True)


def test_a_home_on_btrfs_needs_no_pool_and_limits_need_its_accounts(btrfs_home: Path) -> None:
    engine = Engine(btrfs_home)
    with box(engine) as sandbox:
        assert sandbox.exec("echo here").stdout == "here\n"
        assert sandbox.info().resources.disk is None
    assert engine.storage.kind == "btrfs"
    assert not (btrfs_home / "pool.img").exists()
    with pytest.raises(errors.Unsupported) as caught:
        box(engine, resources={"disk": "20MB"})
    assert "btrfs quota enable" in caught.value.hint
    btrfs.enable_quotas(btrfs_home)
    engine = Engine(btrfs_home)  # a new process
    with box(engine, resources={"disk": "20MB"}) as sandbox:
        assert not sandbox.exec("head -c 50000000 /dev/zero > big").ok
    assert os.listdir(btrfs_home / "pool/uppers") == []


def test_a_kind_that_cannot_be_had_is_refused(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home.mkdir()
    monkeypatch.setenv("SKERRY_STORAGE", "btrfs")
    with pytest.raises(errors.ProviderUnavailable, match="not on btrfs"):
        choose.open_storage(own_home)
    monkeypatch.setenv("SKERRY_STORAGE", "zfs")
    with pytest.raises(errors.InvalidArgument):
        choose.open_storage(own_home)
    monkeypatch.setenv("SKERRY_STORAGE", "pool")
    monkeypatch.setattr(pool, "program", lambda name: (_ for _ in ()).throw(errors.ProviderUnavailable(name)))
    with pytest.raises(errors.ProviderUnavailable) as caught:
        choose.open_storage(own_home)
    assert "btrfs-progs" in caught.value.hint
    monkeypatch.setenv("SKERRY_STORAGE", "auto")
    assert choose.open_storage(own_home).kind == "directory"


# -- the pool: first use, mounting, crashes


PREPARE = "from pathlib import Path; import sys; from skerry.providers.local.storage.choose import open_storage; "
PREPARE += "s = open_storage(Path(sys.argv[1])); s.create(s.uppers / sys.argv[2], 10**6); print(s.kind)"


def test_processes_that_use_a_new_home_at_once_make_one_pool(own_home: Path) -> None:
    own_home.mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", PREPARE, own_home, f"t{n}"], stdout=subprocess.PIPE) for n in range(6)
    ]
    assert [process.communicate(timeout=60)[0] for process in started] == [b"pool\n"] * 6
    assert sorted(os.listdir(own_home / "pool/uppers")) == [f"t{n}" for n in range(6)]
    assert sum(f"{own_home}/pool " in line for line in Path("/proc/self/mounts").read_text().splitlines()) == 1
    assert btrfs.has_quotas(own_home / "pool")


@pytest.mark.parametrize("chosen", [False, True])
def test_a_crash_before_the_pool_is_complete_is_made_good(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    own_home.mkdir()
    (own_home / "pool.new").write_bytes(b"half made")
    # died between mount and accounts
    monkeypatch.setattr(btrfs, "enable_quotas", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        choose.open_storage(own_home)
    monkeypatch.undo()
    assert os.path.ismount(own_home / "pool")
    assert not btrfs.has_quotas(own_home / "pool")
    if chosen:  # by somebody who came in between
        (own_home / "storage").write_text("pool\n")
    made = choose.open_storage(own_home)
    assert btrfs.has_quotas(own_home / "pool")
    made.create(made.uppers / "a", 5 * MB)
    with pytest.raises(OSError, match="quota"):
        write(made.uppers / "a", 10 * MB)
    assert not (own_home / "pool.new").exists()


def test_a_kernel_that_keeps_no_accounts_is_said_before_anything_is_written(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home.mkdir()
    monkeypatch.setattr(btrfs, "has_quotas", lambda path: False)
    with pytest.raises(errors.ProviderUnavailable, match="no disk limit can be enforced"):
        choose.open_storage(own_home)
    assert not (own_home / "storage").exists()


def test_a_pool_that_is_not_mounted_is_mounted_by_the_next_use(ready: Engine) -> None:
    sandbox = ready.create(SandboxSpec())
    ready.destroy(sandbox.id)
    ready.volumes.create("kept", size=None, temporary=False)
    (ready.storage.volumes / "kept/file").write_text("precious")
    subprocess.run(["umount", ready.storage.root], check=True)  # as after a restart of the machine
    assert not os.path.ismount(ready.store.home / "pool")
    assert Engine(ready.store.home).list() == []
    assert (ready.storage.volumes / "kept/file").read_text() == "precious"
    subprocess.run(["umount", ready.storage.root], check=True)
    ready.destroy(ready.create(SandboxSpec()).id)  # by an engine that had it open


def test_a_pool_unmounted_by_hand_under_a_running_sandbox_loses_nothing(ready: Engine) -> None:
    with box(ready) as sandbox:
        sandbox.files.write("before", b"1")
        subprocess.run(["umount", ready.storage.root], check=True)
        sandbox.files.write("during", b"2")
        with box(ready) as other:
            assert other.exec("echo fine").stdout == "fine\n"
        sandbox.files.write("after", b"3")
        upper = ready.storage.uppers / sandbox.id / "u/workspace"
        assert {path.name: path.read_bytes() for path in upper.iterdir()} == {
            "before": b"1",
            "during": b"2",
            "after": b"3",
        }
        assert list(Path("/sys/block").glob("loop*/loop/backing_file"))
        backing = [p.read_text().strip() for p in Path("/sys/block").glob("loop*/loop/backing_file")]
        assert backing.count(str(ready.store.home / "pool.img")) == 1  # never twice: that would destroy it


def test_unmount_is_refused_while_a_sandbox_runs(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(ready.store.home))
    with box(ready), pytest.raises(errors.Conflict):
        storage_commands.unmount()
    assert storage_commands.unmount()
    assert not storage_commands.unmount()
    told = storage_commands.report()
    assert (told.kind, told.limits, told.sandboxes, told.volumes) == ("pool", True, 0, 0)
    assert 0 < told.used < told.size <= 600 * MB
    assert told.allocated is not None
    assert told.allocated < told.size  # it takes what is in it, not all that it may


# -- faults


def taken_down(engine: Engine) -> None:
    """Kill nobody, but let go of the pool."""
    assert isinstance(engine.storage, PoolStorage)
    engine.storage.unmount()


def test_a_missing_pool_is_said_and_not_made_anew(ready: Engine) -> None:
    taken_down(ready)
    image = ready.store.home / "pool.img"
    image.rename(image.with_name("elsewhere"))
    with pytest.raises(errors.Corrupted, match="missing") as caught:
        Engine(ready.store.home).create(SandboxSpec())
    assert "put it back" in caught.value.hint
    assert not image.exists()
    assert Engine(ready.store.home).list() == []
    image.with_name("elsewhere").rename(image)
    ready.destroy(ready.create(SandboxSpec()).id)


@pytest.mark.parametrize("damage", ["superblock", "cut", "empty"])
def test_a_damaged_pool_is_said_and_not_damaged_further(ready: Engine, damage: str) -> None:
    taken_down(ready)
    image = ready.store.home / "pool.img"
    subprocess.run(["cp", "--sparse=always", image, image.with_name("whole")], check=True)
    with image.open("r+b") as file:
        if damage == "superblock":
            file.seek(64 << 10)
            file.write(bytes(4096))
        else:
            file.truncate(1 << 20 if damage == "cut" else 0)
    looked = hashlib.sha256(image.read_bytes()).digest()
    with pytest.raises(errors.Corrupted) as caught:
        Engine(ready.store.home).create(SandboxSpec())
    assert "btrfs check" in caught.value.hint
    assert hashlib.sha256(image.read_bytes()).digest() == looked
    image.with_name("whole").rename(image)
    ready.destroy(ready.create(SandboxSpec()).id)


def test_a_pool_deleted_while_it_is_used_is_said_while_its_files_can_be_saved(own_home: Path) -> None:
    engine = Engine(own_home)
    sandbox = engine.create(SandboxSpec())
    (own_home / "pool.img").unlink()
    for other in (engine, Engine(own_home)):
        with pytest.raises(errors.Corrupted, match="deleted"):
            other.create(SandboxSpec())
        assert [info.id for info in other.list()] == [sandbox.id]
    assert (own_home / "pool/uppers" / sandbox.id / "u").is_dir()
    engine.destroy(sandbox.id)
    assert not inventory.processes_of(sandbox.id)


def test_destroy_works_without_the_pool_and_its_files_go_when_it_is_back(ready: Engine) -> None:
    lost = ready.create(SandboxSpec(name="lost"))
    before = inventory.processes_of(lost.id)
    image = ready.store.home / "pool.img"
    taken_down(ready)
    image.rename(image.with_name("elsewhere"))
    other = Engine(ready.store.home)
    assert [info.id for info in other.list()] == [lost.id]
    other.destroy(lost.id)
    assert before
    assert not inventory.processes_of(lost.id)
    assert not ready.store.directory(lost.id).exists()
    assert ready.store.slot_of(lost.id) is None
    assert other.list() == []
    image.with_name("elsewhere").rename(image)
    assert (ready.storage.uppers / lost.id).is_dir()
    Engine(ready.store.home).prepare()
    assert not (ready.storage.uppers / lost.id).exists()


def test_a_full_pool_is_a_full_disk_and_what_is_freed_can_be_used(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKERRY_POOL_SIZE", "300MB")
    engine = Engine(own_home)
    engine.prepare()
    with box(engine) as sandbox:
        full = sandbox.exec("head -c 400000000 /dev/zero > big; sync")
        assert "no space" in full.stderr.lower()
        with pytest.raises(errors.DiskFull):
            sandbox.files.write("more", b"x" * 5 * MB)
        try:
            engine.destroy(engine.create(SandboxSpec()).id)
        except errors.DiskFull:
            pass  # the kernel keeps some room for metadata, which may or may not do for one more
        assert sandbox.exec("rm big && sync && echo fine").stdout == "fine\n"
        assert sandbox.exec("head -c 50000000 /dev/zero > big && echo fine").stdout == "fine\n"
    engine.destroy(engine.create(SandboxSpec()).id)
    assert os.listdir(own_home / "pool/uppers") == []


def test_a_nonsense_choice_is_said(own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "storage").write_text("tape\n")
    with pytest.raises(errors.Corrupted, match="tape"):
        choose.open_storage(own_home)
    (own_home / "storage").unlink()


def test_threads_of_one_process_share_the_first_use(own_home: Path) -> None:
    engine = Engine(own_home)
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(engine.create(SandboxSpec()).id)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4


def test_a_limit_of_gpus_is_refused(ready: Engine) -> None:
    with pytest.raises(errors.Unsupported):
        ready.create(SandboxSpec(resources=Resources(gpu="any")))
