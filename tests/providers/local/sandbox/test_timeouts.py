"""What becomes of a sandbox at its timeout: stopped with its files, or destroyed; whoever looks first sees to it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors
from skerry.core.json import plain
from skerry.core.models import OnTimeout, SandboxSpec, State, VolumeMount
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import ProcessId
from tests import inventory

PATIENCE = 30.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeouts") / "home"
    Engine(path).prepare()
    return path


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    engine = Engine(home)
    engine.prepare()
    before = inventory.take(home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    for volume in engine.volumes.list():
        engine.volumes.delete(volume.name)
    assert inventory.left(before, inventory.settle(home, before)) == {}


def connect(engine: Engine, sandbox_id: str) -> Sandbox:
    return Sandbox.get(sandbox_id, provider=LocalProvider(engine))


def wait_for_the_end(engine: Engine, sandbox_id: str) -> None:
    """Until its own agent has ended it, also where a command has already found it so."""
    init = engine.store.read(sandbox_id).init
    assert init is None or init.wait(PATIENCE)


def test_a_sandbox_with_a_name_is_stopped_and_has_its_files_and_variables(engine: Engine) -> None:
    """As `skerry create --name` makes one: at its timeout its files must not go."""
    made = engine.create(SandboxSpec(name="precious", timeout=2.0))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.env.set("B", "2")
    sandbox.processes.spawn("sleep 600")
    sandbox.close()
    wait_for_the_end(engine, made.id)
    info = engine.find("precious")
    assert (info.state, info.expires_at, info.reason) == (State.STOPPED, None, "its timeout was reached")
    assert not inventory.processes_of(made.id)
    assert not engine.cgroups.exists(made.id)
    assert engine.store.slot_of(made.id) is None
    assert engine.sweep() == []
    assert [info.state for info in engine.list()] == [State.STOPPED]
    event = engine.events(made.id, 0)[-1]
    assert (event.type, event.data) == ("stopped", {"reason": "timeout"})
    started = engine.lifecycle.start(made.id)
    assert started.expires_at is not None
    assert 0 < started.expires_at - time.time() <= 2.1
    sandbox.set_timeout(60)
    assert sandbox.exec("cat kept; echo $B").stdout == "data2\n"
    assert sandbox.processes.list() == []
    assert sandbox.info().reason is None


@pytest.mark.parametrize(
    ("name", "asked", "stays"),
    [(None, None, False), (None, "stop", True), ("named", "destroy", False), ("named", "stop", True)],
)
def test_what_was_asked_for_counts_and_otherwise_the_name(
    engine: Engine, name: str | None, asked: OnTimeout | None, stays: bool
) -> None:
    made = engine.create(SandboxSpec(name=name, on_timeout=asked, timeout=1.0))
    assert made.info().on_timeout == ("stop" if stays else "destroy")
    wait_for_the_end(engine, made.id)
    assert list(engine.sweep()) == ([] if stays else [made.id])
    assert [info.state for info in engine.list()] == ([State.STOPPED] if stays else [])


def test_a_paused_sandbox_whose_agent_cannot_end_it_is_stopped_by_who_looks(engine: Engine) -> None:
    made = engine.create(SandboxSpec(name="frozen", timeout=1.5))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.pause()
    time.sleep(1.6)
    assert engine.get(made.id).state is State.STOPPED
    assert not inventory.processes_of(made.id)
    assert sandbox.files.read("kept") == b"data"
    sandbox.close()


def test_a_failed_sandbox_is_not_destroyed_at_the_timeout_that_it_had(engine: Engine) -> None:
    made = engine.create(SandboxSpec(name="failed", timeout=1.0))
    init = engine.store.read(made.id).init
    assert init is not None
    init.kill(PATIENCE)
    assert engine.get(made.id).state is State.FAILED
    time.sleep(1.1)
    engine.sweep()
    assert engine.get(made.id).state is State.FAILED
    assert engine.lifecycle.recover(made.id).state is State.RUNNING


def test_one_that_was_killed_and_whose_timeout_has_passed_is_stopped(engine: Engine) -> None:
    """As after a crash of the machine: nothing of it runs, and it had no last words."""
    made = engine.create(SandboxSpec(name="off", timeout=1.0))
    init = engine.store.read(made.id).init
    assert init is not None
    init.kill(PATIENCE)
    time.sleep(1.1)
    info = engine.get(made.id)
    assert (info.state, info.reason) == (State.STOPPED, "its timeout was reached")


def test_one_whose_owner_is_gone_is_destroyed_whatever_its_timeout_does(engine: Engine) -> None:
    made = engine.create(SandboxSpec(name="leased", timeout=1.0, on_timeout="stop"))
    gone = ProcessId(pid=2**22 - 1, start=1, boot=ProcessId.mine().boot)
    engine.changes.save(dataclasses.replace(engine.store.read(made.id), lease=gone))
    assert list(engine.sweep()) == [made.id]
    made = engine.create(SandboxSpec(name="leased", timeout=1.0))
    wait_for_the_end(engine, made.id)
    assert engine.get(made.id).state is State.STOPPED
    engine.changes.save(dataclasses.replace(engine.store.read(made.id), lease=gone))
    assert list(engine.sweep()) == [made.id]


def test_leaving_the_block_of_one_that_was_stopped_at_its_timeout_destroys_it(engine: Engine) -> None:
    with Sandbox.create(LocalProvider(engine), name="block", timeout=1.0) as sandbox:
        wait_for_the_end(engine, sandbox.id)
        assert sandbox.info().state is State.STOPPED
    assert engine.list() == []


def test_who_dies_while_stopping_it_leaves_it_to_the_next(engine: Engine) -> None:
    made = engine.create(SandboxSpec(name="crash", timeout=1.0))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.close()
    wait_for_the_end(engine, made.id)
    engine.changes.begin(engine.store.read(made.id), "stop", state=State.STOPPING, why="timeout")
    assert engine.get(made.id).reason == "its timeout was reached"
    assert [event.type for event in engine.events(made.id, 0)] == ["created", "ready", "stopped"]
    assert sandbox.files.read("kept") == b"data"
    sandbox.close()


def test_a_change_that_somebody_died_at_is_undone_before_it_is_stopped(engine: Engine) -> None:
    made = engine.create(SandboxSpec(name="pending", timeout=1.0))
    engine.changes.begin(engine.store.read(made.id), "pause")
    wait_for_the_end(engine, made.id)
    assert engine.get(made.id).state is State.STOPPED


def test_its_volumes_stay_taken(engine: Engine) -> None:
    engine.volumes.create("data", size=None, temporary=True)
    mount = VolumeMount(name="data", path="/data")
    made = engine.create(SandboxSpec(name="holder", timeout=1.0, volumes=(mount,)))
    wait_for_the_end(engine, made.id)
    with pytest.raises(errors.Conflict):
        engine.volumes.delete("data")
    engine.sweep()
    assert engine.volumes.get("data").sandboxes == (made.id,)
    engine.destroy(made.id)
    assert engine.volumes.list() == []


def test_to_pause_it_is_refused_before_anything_happens(engine: Engine) -> None:
    for create in (
        lambda: engine.create(SandboxSpec(on_timeout="pause")),
        lambda: Sandbox.create(LocalProvider(engine), on_timeout="pause", template="nothing-of-that-name"),
    ):
        with pytest.raises(errors.Unsupported) as caught:
            create()
        assert caught.value.option == "on_timeout"
    with pytest.raises(errors.InvalidArgument):
        Sandbox.create(LocalProvider(engine), on_timeout="keep")  # type: ignore[arg-type]
    assert engine.list() == []


def test_a_record_from_before_there_was_a_choice_opens_and_goes_by_the_name(engine: Engine) -> None:
    spec = SandboxSpec(name="old", timeout=600.0, idempotency_key="k")
    made = engine.create(spec)
    path = engine.store.directory(made.id) / "record.json"
    record = json.loads(path.read_bytes())
    del record["spec"]["on_timeout"]
    asked = {
        name: value for name, value in plain(spec).items() if name not in ("on_timeout", "encrypted", "instructions")
    }
    record["asked"] = hashlib.sha256(json.dumps(asked, default=plain, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    assert engine.get(made.id).on_timeout == "stop"
    assert engine.create(spec).id == made.id


def test_copies_and_exports_carry_it(engine: Engine, tmp_path: Path) -> None:
    provider = LocalProvider(engine)
    source = Sandbox.create(provider, name="source", on_timeout="stop", timeout=500)
    default = Sandbox.create(provider, name="default", timeout=500)
    try:
        with Sandbox.get(source.id, provider=provider).clone() as copy, copy.fork(1)[0].sandbox as fork:  # type: ignore[union-attr]
            assert (copy.info().on_timeout, fork.info().on_timeout) == ("stop", "stop")
        with default.clone() as unnamed, default.clone(name="other") as named, source.clone(on_timeout="destroy") as it:
            assert [box.info().on_timeout for box in (unnamed, named, it)] == ["destroy", "stop", "destroy"]
        source.restart()
        assert source.info().on_timeout == "stop"
        source.export_state(tmp_path / "state")
        with Sandbox.create(provider, import_state=tmp_path / "state") as imported:
            assert imported.info().on_timeout == "stop"
    finally:
        source.destroy()
        default.destroy()


def test_the_command_line_tells_it_and_gc_leaves_it(home: Path, engine: Engine) -> None:
    def skerry(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "skerry", *words]
        env = os.environ | {"SKERRY_HOME": str(home)}
        return subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=True)

    made = skerry("create", "--name", "told", "--lifetime", "3")
    sandbox_id = made.stdout.strip()
    assert made.stderr.startswith("told stops in ")
    assert "keeps its files" in made.stderr
    skerry("exec", "told", "--", "sh", "-c", "echo data > kept")
    brief = skerry("create", "--lifetime", "600")
    assert "is destroyed in " in brief.stderr
    assert skerry("create", "--lifetime", "600", "--on-timeout", "stop", "-o", "json").stderr == ""
    wait_for_the_end(engine, sandbox_id)
    assert skerry("gc").stdout == "nothing to remove\n"
    assert "stopped (its timeout was reached)" in skerry("info", "told").stdout
    assert skerry("exec", "told", "--", "cat", "kept").stdout == "data\n"
    assert "stops in " in skerry("ps").stdout
