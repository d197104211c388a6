"""The local provider's own promises: bad input, damaged state, missing programs, a full disk, several processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors, new_sandbox_id
from skerry.core.models import Changes, Resources, SandboxSpec, State
from skerry.functional import SandboxClient, list_sandboxes
from skerry.providers.local import LocalProvider, host
from skerry.providers.local.engine import Engine
from skerry.providers.local.launch import launch
from skerry.providers.local.sandbox import record
from skerry.providers.local.sandbox.folders import host_id
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
    Engine(home).sweep()  # also what killed runs have left on this machine
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


def test_a_key_gives_the_same_sandbox_whatever_became_of_it_and_of_what_it_was_made_from(engine: Engine) -> None:
    origin = engine.create(SandboxSpec(secrets={"TOKEN": "t"}))
    snapshot = engine.capture.take(origin.id, name=None, description="", hidden=False)
    asked = SandboxSpec(idempotency_key="k", snapshot=snapshot.id, secrets_of=origin.id, env={"A": "1"})
    first = engine.create(asked)
    engine.destroy(origin.id)
    engine.snapshots.delete(snapshot.id)
    changes: list[Callable[[], object]] = [
        lambda: engine.lifecycle.reset(first.id, hard=True),
        lambda: engine.lifecycle.restart(first.id, Changes(env={"A": "2"}), 1.0),
        lambda: engine.settings.record_lease(first.id, False),
        lambda: engine.lifecycle.pause(first.id),
        lambda: engine.lifecycle.resume(first.id),
        lambda: engine.lifecycle.stop(first.id, 1.0),
        lambda: engine.archives.archive(first.id, None),
    ]
    for change in changes:
        change()
        assert engine.create(asked).id == first.id
        with pytest.raises(errors.Conflict):
            engine.create(dataclasses.replace(asked, env={"A": "2"}))
        with pytest.raises(errors.Conflict):
            engine.create(dataclasses.replace(asked, source="another"))
    engine.destroy(first.id)
    with pytest.raises(errors.SkerryError):  # now it would be a new one, and there is nothing to make it from
        engine.create(asked)


def test_a_key_whose_sandbox_has_come_to_its_end_makes_a_new_one(engine: Engine) -> None:
    asked = SandboxSpec(idempotency_key="k")
    first = engine.create(asked)
    engine.changes.save(dataclasses.replace(first, deadline=1.0, expires_at=1.0))
    second = engine.create(asked)
    assert second.id != first.id
    engine.destroy(second.id)


async def test_a_cancelled_second_create_under_a_key_ends_nobody_s_sandbox(engine: Engine) -> None:
    provider = LocalProvider(engine)
    asked = SandboxSpec(idempotency_key="k")
    first = await provider.create(asked)
    again = asyncio.create_task(provider.create(asked))
    await asyncio.sleep(0)
    again.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await again
    assert [info.id for info in await provider.list()] == [first.id]
    await provider.destroy(first.id)


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


@pytest.mark.parametrize("kind", ["pool", "directory"])
def test_an_id_that_is_a_path_destroys_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("SKERRY_STORAGE", kind)
    engine = Engine(tmp_path / kind)
    info = engine.create(SandboxSpec())
    made = engine.capture.take(info.id, name=None, description="", hidden=False)
    engine.volumes.create("data", size=None, temporary=False)
    for path in (
        "../snapshots",
        "../volumes",
        f"{info.id}/../../snapshots",
        f"../sandboxes/{info.id}",
        "sb-x/../../volumes",
    ):
        engine.destroy(path)
        with pytest.raises(errors.SandboxNotFound):
            engine.events(path, 0)
    assert engine.get(info.id).state is State.RUNNING
    assert engine.snapshots.find(made.id).id == made.id
    assert engine.snapshots.tree(made.id).is_dir()
    assert engine.volumes.get("data").name == "data"
    engine.destroy(info.id)
    engine.snapshots.delete(made.id)


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
        whole.replace(b'"version": 4', b'"version": "new"'),
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


def test_a_list_is_all_there_is_unless_a_page_is_asked_for(engine: Engine) -> None:
    """A loop that cleans up must not leave the hundred-and-first behind."""
    first = engine.create(SandboxSpec(timeout=60.0)).id
    engine.lifecycle.stop(first, 0.0)
    before = engine.store.read(first)
    for _ in range(120):  # as many stopped sandboxes: what nothing runs of is a folder
        another = dataclasses.replace(before, id=new_sandbox_id(), created_at=time.time())
        shutil.copytree(engine.store.directory(first), engine.store.directory(another.id))
        engine.changes.save(another)
    provider = LocalProvider(engine)
    everything = Sandbox.list(provider=provider)
    assert (len(everything), everything.cursor, everything[0].id) == (121, None, first)
    assert len([info.id for info in everything]) == 121
    assert len(list_sandboxes(SandboxClient(provider))) == 121
    page = Sandbox.list(provider=provider, limit=100)
    rest = Sandbox.list(provider=provider, cursor=page.cursor)
    assert [info.id for info in (*page, *rest)] == [info.id for info in everything]
    with pytest.raises(errors.InvalidArgument):
        Sandbox.list(provider=provider, limit=0)
    for info in everything:
        engine.destroy(info.id)


def test_a_half_made_folder_is_swept(engine: Engine) -> None:
    info = engine.create(SandboxSpec())
    directory = engine.store.directory(info.id)
    (directory / "record.json").unlink()  # as if its maker had died just before the end
    (engine.store.sandboxes / ".new-sb-bbbbbbbbbb").mkdir()
    (engine.store.trash / "sb-cccccccccc").mkdir()
    (engine.store.names / "stale").symlink_to("sb-dddddddddd")
    assert engine.sweep() == [info.id]


@pytest.mark.parametrize("paused", [False, True])
def test_a_sandbox_whose_home_was_deleted_is_ended_by_the_next_sweep(
    engine: Engine, tmp_path: Path, paused: bool
) -> None:
    lost = Engine(tmp_path / "lost")
    info = lost.create(SandboxSpec())
    if paused:
        lost.lifecycle.pause(info.id)
    assert inventory.processes_of(info.id)
    done = subprocess.run(["rm", "-rf", tmp_path / "lost"], capture_output=True, text=True)
    assert "busy" in done.stderr  # its pool is still mounted
    assert [path.name for path in (tmp_path / "lost").iterdir()] == ["pool"]
    engine.sweep()
    assert not inventory.processes_of(info.id)
    assert not os.path.ismount(tmp_path / "lost/pool")
    assert not any(engine.cgroups.group(hierarchy, info.id).exists() for hierarchy in engine.cgroups.hierarchies)


def test_what_another_run_has_left_is_no_leak_of_this_one_while_it_is_swept(home: Path, tmp_path: Path) -> None:
    other = Engine(tmp_path / "other")
    left_over = other.create(SandboxSpec())
    before = inventory.take(home)
    assert left_over.id in before.foreign
    link = other.store.slots / str(left_over.slot)
    link.unlink()  # as the sweep of any home does it, while its last namespaces and groups still go
    try:
        assert inventory.left(before, inventory.settle(home, before, timeout=1.0)) == {}
    finally:
        link.symlink_to(other.store.directory(left_over.id))
        other.destroy(left_over.id)


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


def test_crun_loads_no_library_that_it_does_not_need() -> None:
    kind, path = host.runtime()
    assert kind == "crun"
    env = {**launch.environment((kind, path)), "LD_TRACE_LOADED_OBJECTS": "1"}
    loaded = subprocess.run([path], env=env, capture_output=True, text=True, check=True).stdout
    assert str(host.BINARIES / "libsystemd.so.0") in loaded and "libseccomp" in loaded
    assert "libgcrypt" not in loaded


def test_a_crun_that_wants_more_of_systemd_gets_all_of_it(tmp_path: Path) -> None:
    crun = tmp_path / "crun"
    crun.write_bytes(Path(host.runtime()[1]).read_bytes())
    assert "LD_PRELOAD" in launch.environment(("crun", str(crun)))
    for added in (b"\0sd_bus_newer\0", b"\0LIBSYSTEMD_999\0"):
        crun.write_bytes(crun.read_bytes() + added)
        assert "LD_PRELOAD" not in launch.environment(("crun", str(crun)))
        crun.write_bytes(crun.read_bytes().removesuffix(added))
        assert "LD_PRELOAD" in launch.environment(("crun", str(crun)))
    crun.unlink()
    assert "LD_PRELOAD" not in launch.environment(("crun", str(crun)))
    assert "LD_PRELOAD" not in launch.environment(("runc", host.runtime()[1]))


def test_the_launcher_and_the_runtime_die_with_who_started_them(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin/crun"
    slow.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid.new && mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 300\n")
    slow.chmod(0o755)
    env = {**os.environ, "SKERRY_HOME": str(home), "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    client = subprocess.Popen([sys.executable, "-c", "from skerry import Sandbox; Sandbox.create()"], env=env)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        runtime = host.ProcessId.of(int((tmp_path / "pid").read_text()))
        assert runtime is not None
    finally:
        client.kill()
        client.wait()
    ended = runtime.wait(10)
    runtime.kill(10)
    Engine(home).sweep()
    assert ended


@pytest.mark.parametrize(("kind", "size", "rest"), [("directory", 4 << 20, 0), ("pool", 400 << 20, 12 << 20)])
def test_a_full_disk_is_its_own_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, rest: int
) -> None:
    monkeypatch.setenv("SKERRY_STORAGE", kind)
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(home)], check=True)
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(home)], check=True)
    try:
        with pytest.raises(errors.DiskFull, match="at least"):
            Engine(home).create(SandboxSpec())
        assert sorted(path.name for path in home.iterdir() if path.name.startswith("pool")) == ["pool", "pool.lock"]
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_home_below_dev_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher covers /dev with one of the sandbox's own: the files in /dev/shm stay in sight."""
    monkeypatch.setenv("SKERRY_POOL_SIZE", "600MB")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        engine = Engine(Path(place) / "home")
        try:
            info = engine.create(SandboxSpec())
            assert engine.get(info.id).state is State.RUNNING
            engine.destroy(info.id)
        finally:
            unmount_below(Path(place))


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
    assert done.stdout.startswith("PROVIDER_UNAVAILABLE | use sudo"), done.stderr


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
