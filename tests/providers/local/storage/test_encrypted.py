"""Encrypted disks: what lies on disk, who keeps it so, and what happens while they are locked."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Key, Sandbox, State, Volumes
from skerry.core import errors
from skerry.providers.local import LocalProvider, doctor, host, storage_commands
from skerry.providers.local.engine import Engine
from skerry.providers.local.storage import encrypted, fscrypt
from tests.providers.local.homes import use

MB = 10**6
KEY = Key.generate()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.hex())
    monkeypatch.setenv("SKERRY_DISK_KEY", f"file:{tmp_path}/key")
    monkeypatch.setattr(encrypted, "KEY_DIRECTORY", tmp_path / "keys")


@pytest.fixture
def engine(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("SKERRY_POOL_SIZE", "300MB")
    monkeypatch.setenv("SKERRY_HOME", str(own_home))
    return use(own_home)


def box(engine: Engine, **options: object) -> Sandbox:
    return Sandbox.create(LocalProvider(engine), **{"encrypted": True, "timeout": 600, **options})  # type: ignore[arg-type]


def lock(engine: Engine) -> None:
    """Stop what runs, and unmount."""
    for info in engine.list():
        if info.state is State.RUNNING:
            engine.lifecycle.stop(info.id, 10)
    assert storage_commands.unmount()
    assert not os.path.ismount(engine.store.home / "encrypted.disk")


def holds(path: Path, text: str) -> bool:
    """Whether a file, or any file below a directory of the same file system, has this text in it or in its name."""
    if any(text in name for _, names, files in os.walk(path) for name in (*names, *files)):
        return True
    found = subprocess.run(["grep", "-rqaF", text, path], check=False).returncode
    assert found in (0, 1)
    return found == 0


def refused(engine: Engine, **options: object) -> errors.Unsupported:
    before = [info.id for info in engine.list()]
    with pytest.raises(errors.Unsupported) as caught:
        box(engine, **options)
    assert [info.id for info in engine.list()] == before
    return caught.value


# -- what lies on disk


def test_nothing_that_an_encrypted_sandbox_writes_can_be_read_from_the_disk(engine: Engine) -> None:
    home = engine.store.home
    plain, secret = (f"MARK{secrets.token_hex(12)}" for _ in range(2))
    write = "for i in $(seq 3000); do echo {0}; done > {0}; mkdir -p sub/{0}; sync"
    readable = box(engine, encrypted=False)
    readable.exec(write.format(plain), check=True)
    shared = Volumes(LocalProvider(engine)).create("shared", encrypted=True)
    first = box(engine, volumes={"/shared": shared})
    first.exec(write.format(secret) + f"; cp -r {secret} sub /shared", check=True)
    first.snapshots.create(name="kept")
    copy = first.clone()
    copy.exec(f"echo {secret} copied > more", check=True)
    cold = box(engine, snapshot="kept")
    cold.exec(f"echo {secret} > again", check=True)
    cold.archive()
    os.sync()
    assert first.info().encrypted and copy.info().encrypted and cold.info().encrypted
    assert not readable.info().encrypted
    assert holds(home / "pool.img", plain), "this test would see it"
    assert holds(home / "encrypted.disk", secret), "it is on disk, below the encryption"
    outside = [path for path in home.iterdir() if path.name not in ("encrypted", "encrypted.disk")]
    assert {"encrypted.img", "pool.img", "pool", "sandboxes", "snapshots"} <= {path.name for path in outside}
    assert [path.name for path in outside if holds(path, secret)] == []
    readable.destroy()
    lock(engine)
    assert not holds(home, secret), "with both pools unmounted"
    storage_commands.unlock(None)
    assert secret in copy.exec("cat more", check=True).stdout
    cold.start()
    assert cold.exec("cat again", check=True).stdout == f"{secret}\n"


def test_without_the_key_the_disk_shows_neither_names_nor_contents(engine: Engine, tmp_path: Path) -> None:
    box(engine).exec("echo hello > hello", check=True)
    lock(engine)
    place = tmp_path / "look"
    place.mkdir()
    subprocess.run(["mount", "-o", "loop,ro", engine.store.home / "encrypted.img", place], check=True)
    (hidden,) = (place / "files").iterdir()
    assert hidden.name != "pool.img"
    with pytest.raises(OSError, match="Required key not available"):
        hidden.read_bytes()
    assert fscrypt.key_id(place / "files") is not None and fscrypt.key_id(place) is None
    subprocess.run(["umount", place], check=True)


# -- it stays so


def test_what_is_made_from_an_encrypted_sandbox_is_encrypted_too(engine: Engine) -> None:
    source, clear = box(engine), box(engine, encrypted=None)
    made = source.snapshots.create()
    open_one = clear.snapshots.create()
    assert (made.encrypted, open_one.encrypted, clear.info().encrypted) == (True, False, False)
    fork = [each.sandbox for each in source.fork(2) if each.sandbox is not None]
    again = box(engine, snapshot=made, encrypted=None)
    fork[0].reset(hard=True)
    again.restart()
    source.snapshots.restore(made)
    within = engine.store.home / "encrypted/uppers"
    for each in (source, again, *fork):
        assert each.info().encrypted and (within / each.id / "u").is_dir()
        assert not (engine.storage.uppers / each.id).exists()
    assert refused(engine, snapshot=made, encrypted=False).option == "encrypted"
    assert "import that" in refused(engine, snapshot=open_one, encrypted=True).hint
    with pytest.raises(errors.Conflict, match="not encrypted"):
        clear.snapshots.restore(made)
    with pytest.raises(errors.Unsupported, match="templates are not encrypted"):
        engine.templates.commit(source.id, "a" * 32, None)
    assert source.exec("echo still here").stdout == "still here\n"
    ids = {path.name for path in within.iterdir()}
    for each in (source, again, *fork):
        each.destroy()
    assert len(ids) == 4 and not list(within.iterdir())
    engine.snapshots.delete(made.id)
    assert not list((engine.store.home / "encrypted/snapshots").iterdir())


def test_an_export_moves_files_between_plain_and_encrypted_disks(engine: Engine) -> None:
    source = box(engine)
    source.files.write("note", b"carried")
    data = source.export_state(key=KEY)
    for wanted in (True, False):
        copy = box(engine, encrypted=wanted, import_state=data, key=KEY)
        assert (copy.info().encrypted, copy.files.read("note")) == (wanted, b"carried")
        assert (engine.store.home / ("encrypted" if wanted else "pool") / "uppers" / copy.id).is_dir()


def test_a_disk_limit_holds(engine: Engine) -> None:
    with box(engine, resources={"disk": "20MB"}) as sandbox:
        assert not sandbox.exec("head -c 50000000 /dev/urandom > big", timeout=120).ok
        assert 10 * MB < sandbox.files.stat("big").size <= 20 * MB
        assert sandbox.usage().disk_total == 20 * MB
        sandbox.exec("rm big", check=True)
        sandbox.set_limits(disk="40MB")
        assert sandbox.exec("head -c 30000000 /dev/urandom > big", timeout=120).ok
        sandbox.stop()
        sandbox.start()
        assert sandbox.files.stat("big").size == 30 * MB


def test_a_plain_volume_can_only_be_read_in_an_encrypted_sandbox(engine: Engine) -> None:
    volumes = Volumes(LocalProvider(engine))
    volumes.create("plain")
    assert "encrypted volume" in refused(engine, volumes={"/data": "plain"}).hint
    reading = box(engine, volumes=[volumes.mount_existing("plain", "/data", read_only=True)])
    assert not reading.exec("echo x > /data/x").ok
    sealed = volumes.create("sealed", size="5MB", encrypted=True)
    assert sealed.encrypted and not volumes.get("plain").encrypted
    writing = box(engine, encrypted=False, volumes={"/data": sealed})
    assert writing.exec("echo x > /data/x").ok
    assert not writing.exec("head -c 9000000 /dev/urandom > /data/big").ok
    assert (engine.store.home / "encrypted/volumes/sealed/x").exists()
    for each in (reading, writing):
        each.destroy()
    volumes.delete("sealed")
    assert not list((engine.store.home / "encrypted/volumes").iterdir())


# -- where it is not possible


def test_a_machine_that_cannot_encrypt_says_so_before_anything_happens(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = host._search
    monkeypatch.setattr(host, "_search", lambda name: None if name == "mkfs.ext4" else search(name))
    error = refused(engine)
    assert (error.option, error.hint) == ("encrypted", "apt-get install -y e2fsprogs")
    with pytest.raises(errors.Unsupported) as caught:
        Volumes(LocalProvider(engine)).create("sealed", encrypted=True)
    assert caught.value.option == "encrypted"
    assert not list(engine.store.home.glob("encrypted*"))
    check = doctor._encryption()
    assert not check.ok and not check.required and check.fix == "apt-get install -y e2fsprogs"
    monkeypatch.undo()
    assert doctor._encryption().ok


# -- keys


def test_a_locked_disk_is_neither_lost_nor_in_the_way(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, cold, gone = box(engine, name="kept"), box(engine), box(engine)
    Volumes(LocalProvider(engine)).create("sealed", encrypted=True)
    for each in (kept, cold):
        each.files.write("note", b"mine")
    cold.archive()
    kept.snapshots.create(name="before")
    lock(engine)
    monkeypatch.delenv("SKERRY_DISK_KEY")
    later = use(engine.store.home)  # as after a reboot
    assert {info.id: (info.state, info.encrypted) for info in later.list()} == {
        kept.id: (State.STOPPED, True),
        cold.id: (State.ARCHIVED, True),
        gone.id: (State.STOPPED, True),
    }
    with pytest.raises(errors.DiskLocked) as caught:
        later.lifecycle.start(kept.id)
    assert (caught.value.code, caught.value.retryable) == ("DISK_LOCKED", False)
    assert "skerry storage unlock" in caught.value.hint and "SKERRY_DISK_KEY" in str(caught.value)
    for call in (
        lambda: later.lifecycle.reset(kept.id, hard=True),
        lambda: later.lifecycle.start(cold.id),
        lambda: later.restore.to_snapshot(kept.id, later.snapshots.find("before").id),
        lambda: later.capture.take(kept.id, name="x", description="", hidden=False),
        lambda: later.archives.archive(kept.id, None),
        lambda: box(later),
        lambda: box(later, encrypted=None, snapshot="before"),
    ):
        with pytest.raises(errors.DiskLocked):
            call()
    assert [(info.state, info.reason) for info in later.list()] == [
        (State.STOPPED, None),
        (State.ARCHIVED, None),
        (State.STOPPED, None),
    ]
    assert [kept.name for kept in later.snapshots.list()] == ["before"]
    assert [(volume.encrypted, volume.used) for volume in later.volumes.list()] == [(True, None)]
    assert storage_commands.report().encrypted == "locked"
    with box(later, encrypted=False) as clear:
        assert clear.exec("echo on").stdout == "on\n"
    later.destroy(gone.id)
    later.sweep()
    with pytest.raises(errors.DiskLocked, match="another key"):
        storage_commands.unlock(f"env:{_variable(monkeypatch, Key.generate())}")
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        storage_commands.unlock("file:/nowhere")
    assert not os.path.ismount(engine.store.home / "encrypted.disk")
    skerry = [sys.executable, "-m", "skerry", "storage", "unlock", "--key", f"env:{_variable(monkeypatch, KEY)}"]
    said = subprocess.run(skerry, check=True, capture_output=True, text=True).stderr
    assert said == "unlocked\n"
    assert storage_commands.report().encrypted == "unlocked"
    later.sweep()
    assert sorted(path.name for path in (engine.store.home / "encrypted/uppers").iterdir()) == [kept.id]
    for each in (kept, cold):
        assert Sandbox.get(each.id, provider=LocalProvider(later)).files.read("note") == b"mine"


def _variable(monkeypatch: pytest.MonkeyPatch, key: Key) -> str:
    monkeypatch.setenv("SOME_KEY", key.hex())
    return "SOME_KEY"


def test_what_a_shutdown_ended_is_stopped_also_while_its_disk_is_locked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = box(engine, name="kept")
    sandbox.exec("echo mine > note; sync", check=True)
    init = engine.store.read(sandbox.id).init
    assert init is not None
    os.kill(init.pid, signal.SIGTERM)
    assert init.wait(20)
    assert storage_commands.unmount()
    monkeypatch.delenv("SKERRY_DISK_KEY")
    later = use(engine.store.home)
    assert (later.get(sandbox.id).state, later.get(sandbox.id).reason) == (
        State.STOPPED,
        "its first process got SIGTERM, as when the machine shuts down",
    )
    storage_commands.unlock(f"env:{_variable(monkeypatch, KEY)}")
    assert Sandbox.get(sandbox.id, provider=LocalProvider(later)).exec("cat note").stdout == "mine\n"


def test_a_key_that_skerry_makes_is_roots_and_outside_of_the_home(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKERRY_DISK_KEY")
    sandbox = box(engine)
    sandbox.files.write("note", b"mine")
    (file,) = (tmp_path / "keys").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert storage_commands.report().key_file == str(file)
    assert not holds(engine.store.home / "encrypted.img", file.read_text().strip())
    lock(engine)
    sandbox.start()  # finds it
    assert sandbox.files.read("note") == b"mine"
    lock(engine)
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(errors.DiskLocked, match=str(file)):
        sandbox.start()
    (tmp_path / "elsewhere").rename(file)
    sandbox.start()
    assert sandbox.files.read("note") == b"mine"


@pytest.mark.parametrize("what", ["gone", "replaced"])
def test_a_pool_that_is_gone_or_not_encrypted_is_refused_and_nothing_is_made(engine: Engine, what: str) -> None:
    sandbox = box(engine)
    lock(engine)
    image = engine.store.home / "encrypted.img"
    image.rename(image.with_name("aside"))
    if what == "replaced":
        with image.open("wb") as file:
            file.truncate(32 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with pytest.raises(errors.Corrupted, match="missing" if what == "gone" else "no encrypted directory"):
        sandbox.start()
    assert image.exists() is (what == "replaced")
    image.with_name("aside").rename(image)
    sandbox.start()


# -- what stays mounted


def test_a_pool_that_another_mount_namespace_has_is_not_said_to_be_locked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted, "_PATIENCE", 0.5)
    sandbox = box(engine)
    sandbox.files.write("note", b"mine")
    away = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "cat"], stdin=subprocess.PIPE)
    while os.readlink(f"/proc/{away.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        time.sleep(0.01)
    sandbox.stop()
    with pytest.raises(errors.ProviderUnavailable, match="not locked") as caught:
        storage_commands.unmount()
    assert "/proc/*/mountinfo" in caught.value.hint
    sandbox.start()  # it can be used again meanwhile
    assert sandbox.files.read("note") == b"mine"
    sandbox.stop()
    away.communicate()
    monkeypatch.setattr(encrypted, "_PATIENCE", 30.0)
    assert storage_commands.unmount()


def test_the_encrypted_pool_of_a_deleted_home_is_unmounted(engine: Engine, tmp_path: Path) -> None:
    box(engine).exec("sync", check=True)
    home = engine.store.home
    subprocess.run(["rm", "-rf", "--one-file-system", home], check=False, capture_output=True)
    use(tmp_path / "another").sweep()
    end = time.monotonic() + 60
    while (mounted := str(home) in Path("/proc/self/mounts").read_text()) and time.monotonic() < end:
        use(tmp_path / "another").sweep()
    assert not mounted
