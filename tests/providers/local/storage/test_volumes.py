"""Volumes on the local provider: who owns what, what a hostile sandbox can do with links, races, crashes, bad input."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors
from skerry.core.contract.provider import Provider
from skerry.core.models import SandboxSpec, State, VolumeMount
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.testing import VolumesConformance

MB = 10**6


def make(engine: Engine, name: str = "data", *, size: int | None = None, temporary: bool = False) -> Path:
    """A volume; where its files are."""
    engine.volumes.create(name, size=size, temporary=temporary)
    return engine.storage.volumes / name


@contextlib.contextmanager
def box(engine: Engine, *mounts: VolumeMount, **options: object) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(LocalProvider(engine), volumes=mounts, **options)  # type: ignore[arg-type]
    try:
        yield sandbox
    finally:
        sandbox.destroy()


def at(path: str, name: str = "data", *, subpath: str = "", read_only: bool = False) -> VolumeMount:
    return VolumeMount(name=name, path=path, subpath=subpath, read_only=read_only)


def restart(engine: Engine, sandbox: Sandbox) -> Sandbox:
    """End what runs of a sandbox and start it again on the files it has left."""
    with engine.changes.lock(sandbox.id, "restart", State.RUNNING) as (record, lock):
        record = engine.store.take_slot(engine.changes.halt(record))
        try:
            engine.changes.save(engine.changes.bring_up(record, lock))
        except BaseException:
            engine.changes.halt(record)
            raise
    return Sandbox.get(sandbox.id, provider=LocalProvider(engine))


# -- use


def test_a_new_volume_belongs_to_the_user_and_ids_are_right_in_every_sandbox(ready: Engine) -> None:
    tree = make(ready)
    with box(ready, at("/data")) as first, box(ready, at("/mnt/shared")) as second:
        slots = {ready.store.read(each.id).slot for each in (first, second)}
        assert len(slots) == 2  # two ranges of ids on the machine
        assert first.exec("stat -c '%u %g %a' /data").stdout == "1000 1000 755\n"
        first.exec("echo mine > /data/user && mkdir /data/dir", check=True)
        first.exec("echo root > /data/root && chmod 600 /data/root && chown 33:33 /data/dir", user="root", check=True)
        seen = second.exec("cd /mnt/shared && stat -c '%n %u %g %a' *; cat user; cat root")
        assert seen.stdout == "dir 33 33 755\nroot 0 0 600\nuser 1000 1000 644\nmine\n"
        assert "ermission denied" in seen.stderr
        assert second.exec("cat /mnt/shared/root", user="root").stdout == "root\n"
        second.exec("echo more >> /mnt/shared/user", check=True)
        assert first.files.read("/data/user") == b"mine\nmore\n"
    assert {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tree.iterdir()} == {
        "user": (1000, 1000),
        "root": (0, 0),
        "dir": (33, 33),
    }


def test_a_volume_outlives_its_sandboxes_and_gives_no_setuid_rights(ready: Engine) -> None:
    make(ready)
    with box(ready, at("/data")) as sandbox:
        sandbox.exec("cp /usr/bin/id /data/id && chmod 4755 /data/id", user="root", check=True)
        assert sandbox.exec("/data/id -u").stdout == "1000\n"
    with box(ready, at("/data")) as sandbox:
        assert sandbox.exec("/data/id -u").stdout == "1000\n"
        assert not sandbox.exec("mknod /data/null c 1 3", user="root").ok


def test_read_only_is_read_only_for_root_too_while_another_writes(ready: Engine) -> None:
    make(ready)
    with box(ready, at("/data", read_only=True)) as reader, box(ready, at("/data")) as writer:
        writer.files.write("/data/f", b"1")
        assert reader.files.read("/data/f") == b"1"
        with pytest.raises(errors.ReadOnly):
            reader.files.write("/data/f", b"2")
        for attempt in ("rm /data/f", "touch /data/g", "mount -o remount,rw /data"):
            assert not reader.exec(attempt, user="root").ok
        assert writer.files.read("/data/f") == b"1"


def test_a_size_is_enforced_for_all_sandboxes_together(ready: Engine) -> None:
    make(ready, size=30 * MB)
    with box(ready, at("/data")) as first, box(ready, at("/data")) as second:
        assert first.exec("head -c 20000000 /dev/zero > /data/first").ok
        assert not second.exec("head -c 20000000 /dev/zero > /data/second").ok
        with pytest.raises(errors.DiskFull):
            second.files.write("/data/third", b"x" * 15 * MB)
        assert second.exec("rm /data/* && head -c 20000000 /dev/zero > /data/second").ok
        assert second.exec("head -c 40000000 /dev/zero > /workspace/own").ok  # its own disk is another
    info = ready.volumes.get("data")
    assert (info.size, info.temporary, info.sandboxes) == (30 * MB, False, ())


def test_directories_cannot_limit_a_volume_but_have_volumes(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_STORAGE", "directory")
    engine = Engine(own_home)
    with pytest.raises(errors.Unsupported) as caught:
        engine.volumes.create("data", size=MB, temporary=False)
    assert caught.value.option == "size"
    assert engine.volumes.list() == []
    make(engine)
    for _ in range(2):
        with box(engine, at("/data")) as sandbox:
            sandbox.exec("echo x >> /data/f", check=True)
    assert (own_home / "pool/volumes/data/f").read_text() == "x\nx\n"
    engine.volumes.delete("data")
    assert os.listdir(own_home / "pool/volumes") == []


def test_subpaths_are_made_for_writers_and_wanted_by_readers(ready: Engine) -> None:
    tree = make(ready)
    with pytest.raises(errors.FileMissing), box(ready, at("/data", subpath="a/b", read_only=True)):
        pass
    assert os.listdir(tree) == []
    with box(ready, at("/data", subpath="a/b")) as writer, box(ready, at("/all")) as other:
        writer.exec("echo here > /data/f", check=True)
        assert other.exec("cat /all/a/b/f; stat -c %u /all/a /all/a/b").stdout == "here\n1000\n1000\n"
        assert writer.exec("ls /data/..").stdout.split() == sorted(
            os.listdir("/") and writer.exec("ls /").stdout.split()
        )
    with box(ready, at("/data", subpath="a/b/", read_only=True)) as reader:
        assert reader.files.read("/data/f") == b"here\n"
    (tree / "file").write_text("")
    with pytest.raises(errors.NotADirectory), box(ready, at("/data", subpath="file/x")):
        pass


def test_mounts_in_mounts_work_in_any_order(ready: Engine) -> None:
    make(ready, "outer")
    make(ready, "inner")
    mounts = (at("/data/sub/deep", "inner"), at("/data", "outer"), at("/data/sub", "inner", subpath="s"))
    with box(ready, *mounts) as sandbox:
        sandbox.exec("echo 1 > /data/f; echo 2 > /data/sub/f; echo 3 > /data/sub/deep/f", check=True)
    trees = ready.storage.volumes
    found = {str(path.relative_to(trees)): path.read_text() for path in trees.glob("**/f")}
    assert found == {"outer/f": "1\n", "inner/s/f": "2\n", "inner/f": "3\n"}


# -- bad input


@pytest.mark.parametrize(
    "path",
    """/ // /. data /a/../b /proc /proc/x /sys /dev/shm /.skerry /.skerry/agent /usr /usr/lib/x""".split(),
)
def test_a_mount_point_that_is_the_sandbox_s_own_is_refused(ready: Engine, path: str) -> None:
    make(ready)
    for refused in (path, "", "/a\0b", "/" + "x" * 300, "/\ud800"):
        with pytest.raises(errors.InvalidArgument):
            ready.create(SandboxSpec(volumes=(at(refused),)))
    assert ready.list() == []


@pytest.mark.parametrize("subpath", ["..", "a/../..", "/etc", "a\0", "x" * 300])
def test_a_subpath_that_leads_out_is_refused(ready: Engine, subpath: str) -> None:
    make(ready)
    with pytest.raises(errors.InvalidArgument):
        ready.create(SandboxSpec(volumes=(at("/data", subpath=subpath),)))


def test_the_same_mount_point_twice_is_refused(ready: Engine) -> None:
    make(ready)
    with pytest.raises(errors.InvalidArgument, match="two volumes"):
        ready.create(SandboxSpec(volumes=(at("/data"), at("//data/./", subpath="x"))))


def test_names_are_checked_and_unknown_ones_are_not_found(ready: Engine) -> None:
    for name in ("", "..", "../x", "A", "a/b", ".hidden", "x" * 64, "a\n"):
        with pytest.raises(errors.InvalidArgument):
            ready.volumes.create(name, size=None, temporary=False)
        for use in (ready.volumes.get, ready.volumes.delete):
            with pytest.raises(errors.VolumeNotFound):
                use(name)
    with pytest.raises(errors.VolumeNotFound), box(ready, at("/data", "nobody")):
        pass
    make(ready, "lock")  # its record is lock.json beside the lock
    with pytest.raises(errors.Conflict):
        make(ready, "lock")
    assert ready.list() == []


def test_a_damaged_record_is_said_and_can_be_deleted(ready: Engine) -> None:
    make(ready)
    record = ready.store.volumes / "data.json"
    for damaged in (b"", b"{", b"[]", b'{"name": "data"}'):
        record.write_bytes(damaged)
        with pytest.raises(errors.Corrupted):
            ready.volumes.get("data")
        with pytest.raises(errors.Corrupted):
            ready.create(SandboxSpec(volumes=(at("/data"),)))
        ready.sweep()
        assert (ready.storage.volumes / "data").is_dir()
    ready.volumes.delete("data")


# -- links planted by a sandbox


@pytest.mark.parametrize(
    "link", ["/etc", "/.skerry", "/proc", "/usr", "/usr/bin", "/", "../../../..", "/nowhere", "loop"]
)
def test_no_link_is_followed_to_a_mount_point(ready: Engine, link: str) -> None:
    tree = make(ready)
    machine = {path: sorted(os.listdir(path)) for path in ("/", "/etc", "/usr/bin", "/run/skerry/root")}
    for name in ("crun", "agent", "env"):  # what would be run in the place of the machine's, or of the agent
        (tree / name).write_text(f"#!/bin/sh\ntouch {tree}/escaped\n")
        (tree / name).chmod(0o755)
    with box(ready, at("/later/data")) as sandbox:
        sandbox.exec(f"mv /later /old; ln -s {link} /later; ln -s /later /loop", user="root", check=True)
        with pytest.raises(errors.Conflict, match=r"/later/data cannot be mounted: /later is a link"):
            restart(ready, sandbox)
    assert {path: sorted(os.listdir(path)) for path in machine} == machine
    assert sorted(os.listdir(tree)) == ["agent", "crun", "env"]


def test_a_file_where_a_volume_is_to_be_is_named(ready: Engine) -> None:
    make(ready)
    with pytest.raises(errors.Conflict, match=r"/etc/passwd/data cannot be mounted: /etc/passwd is not a directory"):
        ready.create(SandboxSpec(volumes=(at("/etc/passwd/data"),)))
    deep = "/etc/passwd" + f"/{'d' * 200}" * 5
    with pytest.raises(errors.Conflict, match=f"{deep} cannot be mounted: /etc/passwd is not a directory"):
        ready.create(SandboxSpec(volumes=(at(deep),)))
    assert not ready.list()


def test_a_link_in_a_volume_is_no_subpath(ready: Engine) -> None:
    tree = make(ready)
    for name, target in (("abs", "/etc"), ("up", "../../.."), ("inside", "real")):
        (tree / name).symlink_to(target)
    (tree / "real").mkdir()
    os.chown(tree / "real", 1000, 1000)
    for subpath in ("abs", "up", "inside", "inside/x", "real/../abs"):
        with pytest.raises((errors.NotADirectory, errors.InvalidArgument)), box(ready, at("/data", subpath=subpath)):
            pass
    with box(ready, at("/data", subpath="real")) as sandbox:
        sandbox.files.write("/data/f", b"")
    assert os.listdir(tree / "real") == ["f"]


def test_a_subpath_swapped_for_a_link_at_any_moment_never_leads_out(ready: Engine) -> None:
    """The launcher resolves it itself: a check before it could be outrun."""
    tree = make(ready)
    (tree / "a").mkdir()
    (tree / "link").symlink_to("/etc")
    stop = threading.Event()
    libc = ctypes.CDLL(None)
    names = [os.fsencode(tree / name) for name in ("a", "link")]

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(-100, names[0], -100, names[1], 2)  # exchanges them

    mounted = refused = 0
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(30):
            try:
                with box(ready, at("/data", subpath="a")) as sandbox:
                    assert sandbox.exec("ls -A /data").stdout == ""
                    mounted += 1
            except (errors.NotADirectory, errors.SandboxFailed):
                refused += 1
    finally:
        stop.set()
        thread.join()
    assert mounted + refused == 30
    assert refused


# -- who has a volume


def test_delete_is_refused_while_any_sandbox_has_it_running_or_not(ready: Engine) -> None:
    tree = make(ready)
    with box(ready, at("/data")) as sandbox:
        assert ready.volumes.get("data").sandboxes == (sandbox.id,)
        with pytest.raises(errors.Conflict, match=sandbox.id):
            ready.volumes.delete("data")
        init = ready.store.read(sandbox.id).init
        assert init is not None
        init.kill(10)
        assert ready.get(sandbox.id).state is State.FAILED
        with pytest.raises(errors.Conflict):
            Engine(ready.store.home).volumes.delete("data")
        (ready.store.directory(sandbox.id) / "record.json").write_bytes(b"{")  # a damaged one may still have it
        with pytest.raises(errors.Conflict):
            ready.volumes.delete("data")
        assert tree.is_dir()
    ready.volumes.delete("data")
    assert not tree.exists()


def test_a_temporary_volume_goes_with_its_last_sandbox(ready: Engine) -> None:
    tree = make(ready, temporary=True)
    ready.sweep()
    assert tree.is_dir()  # it waits for its first
    with box(ready, at("/data")) as first:
        with box(ready, at("/data")) as second:
            second.files.write("/data/f", b"1")
        assert first.files.read("/data/f") == b"1"
    assert not tree.exists()
    with pytest.raises(errors.VolumeNotFound):
        ready.volumes.get("data")


def test_a_temporary_volume_goes_when_its_sandbox_expires(ready: Engine) -> None:
    tree = make(ready, temporary=True)
    record = ready.create(SandboxSpec(volumes=(at("/data"),), timeout=0.5))
    assert record.init is not None
    assert record.init.wait(20)
    ready.sweep()
    assert not tree.exists()


def test_an_expired_sandbox_does_not_keep_its_volume(ready: Engine) -> None:
    make(ready)
    record = ready.create(SandboxSpec(volumes=(at("/data"),), timeout=0.5))
    assert record.init is not None
    assert record.init.wait(20)
    ready.volumes.delete("data")


def test_what_a_crash_left_is_swept(ready: Engine) -> None:
    trees = ready.storage.volumes
    ready.storage.create(trees / "half", None)  # its maker died before the record
    ready.storage.create(trees / ".gone-0123456789abcdef", None)  # its remover died in the middle
    (ready.store.volumes / "half.new").write_text("{")
    kept = make(ready, "kept")
    Engine(ready.store.home).prepare()
    assert (os.listdir(trees), kept.is_dir()) == (["kept"], True)
    assert sorted(os.listdir(ready.store.volumes)) == ["kept.json", "lock"]
    make(ready, "half")


def test_a_failed_create_lets_go_of_its_volume(ready: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    make(ready)
    make(ready, "brief", temporary=True)
    spec = SandboxSpec(volumes=(at("/data"), at("/brief", "brief")), name="broken")
    monkeypatch.setattr("skerry.providers.local.launch.launch.READY_TIMEOUT", 0.0)
    with pytest.raises((errors.Timeout, errors.SandboxFailed)):
        ready.create(spec)
    monkeypatch.undo()
    ready.volumes.delete("data")
    assert [info.name for info in ready.volumes.list()] == ["brief"]  # it still waits for its first
    ready.destroy(ready.create(SandboxSpec(volumes=(at("/brief", "brief"),))).id)
    assert ready.volumes.list() == []


USE = """
import sys
from skerry import Sandbox, VolumeMount
from skerry.core.errors import VolumeNotFound
try:
    box = Sandbox.create(volumes={"/data": "data"})
except VolumeNotFound:
    print("none")
else:
    try:
        box.files.write("/data/f", b"1")
        assert box.files.read("/data/f") == b"1"
        print("used")
    finally:
        box.destroy()
"""


def test_create_with_a_volume_and_delete_never_both_succeed(ready: Engine) -> None:
    """In threads and processes: whoever was quicker wins, and a sandbox that runs always has its volume."""
    outcomes: list[str] = []
    env = os.environ | {"SKERRY_HOME": str(ready.store.home)}

    def delete(stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                ready.volumes.delete("data")
                return
            except errors.Conflict:
                continue

    def use() -> None:
        try:
            record = ready.create(SandboxSpec(volumes=(at("/data"),)))
        except errors.VolumeNotFound:
            outcomes.append("none")
            return
        there = (ready.storage.volumes / "data").is_dir()
        outcomes.append("used" if there else "LOST")
        ready.destroy(record.id)

    for _ in range(8):
        make(ready)
        process = subprocess.Popen([sys.executable, "-c", USE], env=env, stdout=subprocess.PIPE, text=True)
        stop = threading.Event()
        threads = [threading.Thread(target=use) for _ in range(3)]
        remover = threading.Thread(target=delete, args=(stop,))
        for thread in (*threads[:2], remover, *threads[2:]):
            thread.start()
        for thread in threads:
            thread.join()
        outcomes.append(process.communicate(timeout=60)[0].strip())
        remover.join()
        stop.set()
    assert set(outcomes) <= {"used", "none"}
    assert ready.volumes.list() == []


def test_many_at_once_create_one_volume(ready: Engine) -> None:
    made: list[str] = []

    def create() -> None:
        with contextlib.suppress(errors.Conflict):
            made.append(ready.volumes.create("data", size=MB * 10, temporary=False).name)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["data"]
    assert json.loads((ready.store.volumes / "data.json").read_text())["size"] == 10 * MB


@pytest.mark.may_skip  # the size of a volume: plain directories cannot limit it
class TestVolumesOnDirectories(VolumesConformance):
    """The conformance suite again, on the other kind of storage."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SKERRY_STORAGE", "directory")
            engine = Engine(tmp_path_factory.mktemp("plain") / "home")
            engine.prepare()
            assert engine.storage.kind == "directory"
        yield LocalProvider(engine)
        assert os.listdir(engine.storage.volumes) == []
        assert os.listdir(engine.storage.uppers) == []
