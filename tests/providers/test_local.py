"""The local provider's own promises: bad input, damaged state, missing programs, a full disk, several processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.core import errors
from skerry.core.models import Resources, SandboxSpec, State
from skerry.providers.local import LocalProvider, host, record
from skerry.providers.local.engine import Engine
from skerry.providers.local.store import host_id
from tests import inventory
from tests.conftest import unmount_below


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A SKERRY_HOME of this test's own."""
    return tmp_path / "home"


@pytest.fixture
def engine(home: Path) -> Engine:
    return Engine(home)


@pytest.fixture(autouse=True)
def nothing_left(home: Path, tmp_path: Path) -> Iterator[None]:
    Engine(home).prepare()
    before = inventory.take(home)
    yield
    try:
        assert inventory.left(before, inventory.settle(home, before)) == {}
    finally:
        unmount_below(tmp_path)


def test_two_sandboxes_never_share_ids(engine: Engine) -> None:
    made = [engine.create(SandboxSpec()) for _ in range(3)]
    slots = {engine.store.read(info.id).slot for info in made}
    for info in made:
        engine.destroy(info.id)
    assert len(slots) == 3
    assert all(slot is not None and host_id(slot) > 0x7000_0000 - 1 for slot in slots)


def test_a_taken_name_is_a_conflict_and_destroy_frees_it(engine: Engine) -> None:
    first = engine.create(SandboxSpec(name="taken"))
    with pytest.raises(errors.Conflict):
        engine.create(SandboxSpec(name="taken"))
    assert engine.find("taken").id == first.id
    engine.destroy(first.id)
    second = engine.create(SandboxSpec(name="taken"))
    assert second.id != first.id
    engine.destroy(second.id)


def test_an_idempotency_key_gives_the_same_sandbox(engine: Engine) -> None:
    first = engine.create(SandboxSpec(idempotency_key="k1"))
    assert engine.create(SandboxSpec(idempotency_key="k1")).id == first.id
    with pytest.raises(errors.Conflict):
        engine.create(SandboxSpec(idempotency_key="k1", env={"A": "1"}))
    engine.destroy(first.id)
    again = engine.create(SandboxSpec(idempotency_key="k1"))
    assert again.id != first.id
    engine.destroy(again.id)


def test_the_same_key_from_many_threads_makes_one_sandbox(engine: Engine) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(engine.create(SandboxSpec(idempotency_key="k2")).id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1
    engine.destroy(ids[0])


def test_destroy_is_idempotent_and_knows_no_path(engine: Engine) -> None:
    info = engine.create(SandboxSpec())
    engine.destroy(info.id)
    engine.destroy(info.id)
    engine.destroy("sb-aaaaaaaaaa")
    for bad in ("../../etc", "sb-../../x", "", "a/b", "nobody"):
        with pytest.raises(errors.SandboxNotFound):
            engine.find(bad)


def test_limits_above_the_maximum_are_refused_before_anything_is_made(engine: Engine) -> None:
    for resources in (Resources(memory=10**13), Resources(cpu=1000.0), Resources(pids=10**6), Resources(disk=10**12)):
        with pytest.raises(errors.QuotaExceeded):
            engine.create(SandboxSpec(resources=resources))
    for spec in (
        SandboxSpec(resources=Resources(gpu="any")),
        SandboxSpec(isolation="vm"),
    ):
        with pytest.raises(errors.Unsupported):
            engine.create(spec)


def test_a_damaged_record_is_reported_and_can_be_removed(engine: Engine) -> None:
    info = engine.create(SandboxSpec(name="hurt"))
    path = engine.store.directory(info.id) / "record.json"
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        b"[]",
        b'{"version": 1}',
        b"\xff\xfe",
        whole.replace(b'"version": 2', b'"version": 99'),
    ):
        path.write_bytes(damaged)
        with pytest.raises(errors.Corrupted):
            engine.get(info.id)
        assert engine.sweep() == []
    path.write_bytes(whole)
    assert engine.get(info.id).state is State.RUNNING
    path.write_bytes(b"{")
    engine.destroy(info.id)


def test_a_damaged_sandbox_does_not_hide_the_others(engine: Engine) -> None:
    good, bad = engine.create(SandboxSpec()), engine.create(SandboxSpec())
    (engine.store.directory(bad.id) / "record.json").write_bytes(b"{")
    listed = {info.id: info.state for info in engine.list()}
    engine.destroy(good.id)
    engine.destroy(bad.id)
    assert listed == {good.id: State.RUNNING, bad.id: State.FAILED}


def test_a_half_made_folder_is_swept(engine: Engine) -> None:
    info = engine.create(SandboxSpec())
    directory = engine.store.directory(info.id)
    (directory / "record.json").unlink()  # as if its maker had died just before the end
    (engine.store.sandboxes / ".new-sb-bbbbbbbbbb").mkdir()
    (engine.store.trash / "sb-cccccccccc").mkdir()
    (engine.store.names / "stale").symlink_to("sb-dddddddddd")
    assert engine.sweep() == [info.id]


def test_a_sandbox_whose_home_was_deleted_is_ended_by_the_next_sweep(engine: Engine, tmp_path: Path) -> None:
    lost = Engine(tmp_path / "lost")
    info = lost.create(SandboxSpec())
    assert inventory.processes_of(info.id)
    done = subprocess.run(["rm", "-rf", tmp_path / "lost"], capture_output=True, text=True)
    assert "busy" in done.stderr  # its pool is still mounted
    assert [path.name for path in (tmp_path / "lost").iterdir()] == ["pool"]
    engine.sweep()
    assert not inventory.processes_of(info.id)
    assert not os.path.ismount(tmp_path / "lost/pool")
    assert not any(engine.cgroups.group(hierarchy, info.id).exists() for hierarchy in engine.cgroups.hierarchies)


def test_missing_runtime_is_said_with_the_command_that_helps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_search", lambda name: None)
    with pytest.raises(errors.ProviderUnavailable) as caught:
        engine.create(SandboxSpec())
    assert "apt-get install" in caught.value.hint


def test_a_runtime_that_fails_leaves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "crun"
    broken.write_text("#!/bin/sh\necho 'something is wrong' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(host, "_search", lambda name: str(broken) if name == "crun" else shutil.which(name))
    with pytest.raises(errors.SandboxFailed):
        engine.create(SandboxSpec(name="broken"))
    monkeypatch.undo()
    with pytest.raises(errors.SandboxNotFound):
        engine.find("broken")


@pytest.mark.parametrize(("kind", "size", "rest"), [("directory", 4 << 20, 0), ("pool", 400 << 20, 12 << 20)])
def test_a_full_disk_is_its_own_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, rest: int
) -> None:
    monkeypatch.setenv("SKERRY_STORAGE", kind)
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(home)], check=True)
    engine = Engine(home)
    try:
        first = engine.create(SandboxSpec())
        before = inventory.take(home)
        filler = home / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(home).free - rest))
        with pytest.raises(errors.DiskFull):
            engine.create(SandboxSpec(name="no-room"))
        assert [info.id for info in engine.list()] == [first.id]
        assert inventory.settle(home, before).folders == before.folders
        filler.unlink()
        second = engine.create(SandboxSpec(name="no-room"))
        engine.destroy(first.id)
        engine.destroy(second.id)
    finally:
        for info in engine.list():
            engine.destroy(info.id)
        unmount_below(home)
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_home_without_room_for_a_pool_is_a_full_disk(tmp_path: Path) -> None:
    home = tmp_path / "tiny"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home)], check=True)
    try:
        with pytest.raises(errors.DiskFull, match="at least"):
            Engine(home).create(SandboxSpec())
        assert sorted(path.name for path in home.iterdir() if path.name.startswith("pool")) == ["pool", "pool.lock"]
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_long_home_paths_work(tmp_path: Path) -> None:
    home = tmp_path / ("d" * 120)
    engine = Engine(home)
    info = engine.create(SandboxSpec())
    assert engine.get(info.id).state is State.RUNNING
    engine.destroy(info.id)


def test_another_process_finds_it_and_ends_it(engine: Engine, home: Path) -> None:
    info = engine.create(SandboxSpec(name="shared"))
    code = "import sys; from skerry import Sandbox; s = Sandbox.connect('shared'); print(s.exec('echo there').stdout, end=''); s.destroy()"
    env = {**os.environ, "SKERRY_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout == "there\n", done.stderr
    with pytest.raises(errors.SandboxNotFound):
        engine.get(info.id)


def test_a_forked_child_has_a_connection_of_its_own(home: Path) -> None:
    code = "import os, sys\nfrom skerry import Sandbox\ns = Sandbox.create()\npid = os.fork()\n"
    code += "for i in range(20): assert s.exec(f'echo {i} {bool(pid)}').stdout == f'{i} {bool(pid)}\\n'\n"
    code += "if pid == 0: os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0\ns.destroy()\nprint('both')"
    env = {**os.environ, "SKERRY_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout == "both\n", done.stderr


def test_a_process_id_is_not_fooled_by_reuse() -> None:
    mine = host.ProcessId.mine()
    assert mine.alive()
    assert not host.ProcessId(mine.pid, mine.start + 1, mine.boot).alive()
    assert not host.ProcessId(mine.pid, mine.start, "another-boot").alive()
    assert host.ProcessId(mine.pid, mine.start + 1, mine.boot).kill(1.0)  # not us: nothing is killed


def test_a_clock_change_moves_no_deadline(engine: Engine) -> None:
    info = engine.create(SandboxSpec(timeout=300))
    found = engine.store.read(info.id)
    jumped = record.Record(**{**{n: getattr(found, n) for n in found.__slots__}, "expires_at": 1.0})
    assert not jumped.expired()
    engine.destroy(info.id)


def test_without_root_it_says_what_works() -> None:
    code = "import os\nfrom skerry.providers.local.engine import Engine\nfrom skerry.core.errors import SkerryError\nos.setuid(65534)\n"
    code += "try: Engine()\nexcept SkerryError as e: print(e.code, '|', e.hint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, timeout=60)
    assert done.stdout.startswith("PROVIDER_UNAVAILABLE | run it with sudo"), done.stderr


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_both_runtimes_run_a_command_under_the_filter(runtime: str, home: Path) -> None:
    code = "from skerry import Sandbox\nwith Sandbox.create() as s:\n print(s.exec('id -u; grep Seccomp: /proc/self/status; cat /proc/self/cgroup').stdout)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "SKERRY_RUNTIME": runtime, "SKERRY_HOME": str(home)},
        timeout=60,
    )
    assert done.stdout.startswith("1000\nSeccomp:\t2\n"), done.stderr
    assert "sb-" not in done.stdout  # its cgroup namespace shows it as the root


def test_any_number_of_open_descriptors_is_no_problem(engine: Engine) -> None:
    held: list[int] = []
    try:
        for _ in range(30):
            held += [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
            engine.destroy(engine.create(SandboxSpec()).id)
    finally:
        for fd in held:
            os.close(fd)


async def test_a_cancelled_create_leaves_nothing(engine: Engine) -> None:
    provider = LocalProvider(engine)
    for delay in (0.0, 0.001, 0.003, 0.008, 0.015, 0.03):
        task = asyncio.create_task(provider.create(SandboxSpec(name="cancelled")))
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
            await provider.destroy(task.result().id)
        assert [info.name for info in await provider.list()] == []


def test_hundred_at_once_all_work(engine: Engine) -> None:
    results: list[str] = []
    failures: list[Exception] = []

    def make() -> None:
        try:
            results.append(engine.create(SandboxSpec()).id)
        except errors.SkerryError as error:
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sandbox_id in results:
        engine.destroy(sandbox_id)
    assert not failures
    assert len(set(results)) == 100


def test_who_died_at_the_layer_of_the_host_leaves_it_to_the_next(home: Path) -> None:
    engine = Engine(home)
    engine.prepare()
    half = home / "templates/.building-host-x"
    half.mkdir()
    (half / "etc").mkdir()
    engine.destroy(engine.create(SandboxSpec()).id)
    assert not half.exists()
    engine.destroy(engine.create(SandboxSpec(name="again")).id)


@pytest.mark.parametrize("id", ["", "/", "..", "sb-../../x", "/etc", "sb-\0", "sb-" + "a" * 5000, "sb-\udcff"])
async def test_an_id_that_is_none_leads_nowhere(id: str) -> None:
    provider = LocalProvider()
    for call in (provider.get, provider.find, provider.usage, provider.dial):
        with pytest.raises(errors.SandboxNotFound):
            await call(id)
    await provider.destroy(id)
