"""The end of a sandbox: by inactivity and with last words, with its owner, or by a destroy that lets processes end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from skerry.core import errors
from skerry.core.models import SandboxSpec, State
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import ProcessId
from skerry.providers.local.sandbox import last_words
from skerry.wire import LastWords, Type, encode_frame
from tests import inventory
from tests.providers.local.sandbox.conftest import PATIENCE, connect, fail, until


def test_inactivity_stops_and_the_rest_counts_from_the_same_moment(engine: Engine) -> None:
    busy = engine.create(SandboxSpec(auto_stop=1.0)).id
    quiet = engine.create(SandboxSpec(auto_stop=1.0, env={"A": "1"}, secrets={"KEY": "x"})).id
    doomed = engine.create(SandboxSpec(auto_delete=1.0)).id
    connect(engine, quiet).env.set("B", "2")
    with contextlib.closing(connect(engine, busy)) as sandbox:
        work = threading.Thread(target=lambda: sandbox.exec("sleep 4"))
        work.start()
        until(lambda: engine.get(quiet).state is State.STOPPED)
        until(lambda: doomed not in {info.id for info in engine.list()})
        assert engine.get(busy).state is State.RUNNING
        work.join()
    record = engine.store.read(quiet)
    assert record.env == {"A": "1", "B": "2"}
    assert record.reason == "nothing was done in it for 1 s"
    assert record.last_active_at is not None
    assert record.stopped_at is not None
    assert abs(record.stopped_at - record.last_active_at - 1.0) < 0.01
    assert [event.type for event in engine.events(quiet, 0)][-1] == "stopped"
    assert connect(engine, quiet).exec("echo $A$B$KEY").stdout == "12x\n"
    until(lambda: engine.get(busy).state is State.STOPPED)


def test_inactivity_is_counted_on_when_whoever_made_it_is_gone(engine: Engine) -> None:
    code = (
        "import time\nfrom skerry import Sandbox\n"
        "sandbox = Sandbox.create(auto_stop=1, auto_archive=4)\nsandbox.exec('true')\nprint(sandbox.id, time.time())"
    )
    env = {**os.environ, "SKERRY_HOME": str(engine.store.home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    sandbox_id, active = done.stdout.split()
    init = engine.store.read(sandbox_id).init
    assert init is not None
    assert init.wait(PATIENCE)
    time.sleep(1.5)  # that nobody looked when it stopped is of no importance
    engine.sweep()
    record = engine.store.read(sandbox_id)
    assert record.last_active_at is not None
    assert -1 < record.last_active_at - float(active) < 2  # the agent looks every quarter of a second
    if time.time() < record.last_active_at + 4:
        assert record.state is State.STOPPED
    time.sleep(max(0.0, record.last_active_at + 4 - time.time()))
    engine.sweep()
    assert engine.get(sandbox_id).state is State.ARCHIVED


def test_a_restore_is_no_inactivity(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec(auto_archive=60.0)).id
    snapshot = engine.capture.take(sandbox_id, name=None, description="", hidden=False)
    engine.lifecycle.stop(sandbox_id, 0)
    engine.changes.save(dataclasses.replace(engine.store.read(sandbox_id), last_active_at=time.time() - 61))
    engine.restore.to_snapshot(sandbox_id, snapshot.id)
    engine.snapshots.delete(snapshot.id)
    engine.sweep()
    assert engine.get(sandbox_id).state is State.STOPPED


def test_what_was_stopped_is_archived_and_deleted_when_that_is_due(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec(auto_archive=60.0, auto_delete=120.0)).id
    engine.lifecycle.stop(sandbox_id, 0)
    engine.sweep()
    assert engine.get(sandbox_id).state is State.STOPPED
    record = engine.store.read(sandbox_id)
    engine.changes.save(dataclasses.replace(record, last_active_at=time.time() - 61))
    assert engine.get(sandbox_id).state is State.STOPPED  # to look is no reason to begin long work
    engine.sweep()
    assert engine.get(sandbox_id).state is State.ARCHIVED
    record = engine.store.read(sandbox_id)
    engine.changes.save(dataclasses.replace(record, last_active_at=time.time() - 121))
    with pytest.raises(errors.SandboxNotFound):
        engine.get(sandbox_id)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"garbage",
        b"\xff" * (3 << 20),
        encode_frame(0, Type.WORDS, LastWords(reason="idle", at_ms=0).encode())[:-3],
        encode_frame(0, Type.WORDS, LastWords(reason="end", at_ms=0).encode()),
        encode_frame(0, Type.WORDS, LastWords(reason="idle", at_ms=0, env_count=5).encode()),
    ],
    ids=["none", "garbage", "huge", "torn", "an end nobody asked for", "half an environment"],
)
def test_a_sandbox_that_ends_without_good_words_has_failed(engine: Engine, words: bytes) -> None:
    sandbox_id = engine.create(SandboxSpec(auto_stop=600.0)).id
    init = engine.store.read(sandbox_id).init
    assert init is not None
    init.kill(PATIENCE)
    engine.store.words(sandbox_id).write_bytes(words)
    assert engine.get(sandbox_id).state is State.FAILED


def test_last_words_are_heard_where_an_earlier_skerry_had_them(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec(auto_stop=600.0)).id
    init = engine.store.read(sandbox_id).init
    assert init is not None
    init.kill(PATIENCE)
    words = LastWords(reason="idle", at_ms=round(time.time() * 1000), env_count=1, env=(b"A=1",))
    old = engine.store.directory(sandbox_id) / "words"
    old.write_bytes(encode_frame(0, Type.WORDS, words.encode()))
    assert engine.get(sandbox_id).state is State.STOPPED
    assert engine.store.read(sandbox_id).env == {"A": "1"}
    engine.lifecycle.start(sandbox_id)
    assert not old.exists()  # it is not heard again


@pytest.mark.parametrize("home", ["pool", "directory"], indirect=True)
def test_last_words_take_no_room_when_a_sandbox_has_stopped(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec(auto_stop=600.0)).id
    file = engine.store.words(sandbox_id)
    assert file.stat().st_size == 0
    engine.lifecycle.stop(sandbox_id, 0)
    assert not file.parent.exists()
    engine.lifecycle.start(sandbox_id)
    connect(engine, sandbox_id).env.set("A", "1")
    engine.lifecycle.stop(sandbox_id, 0)
    assert engine.store.read(sandbox_id).env == {"A": "1"}
    engine.storage.create(file.parent, None)
    engine.destroy(sandbox_id)
    assert not file.parent.exists()
    engine.storage.create(file.parent, None)  # as a crash may leave it
    engine.sweep()
    assert not file.parent.exists()


def test_inactivity_that_was_not_asked_for_is_not_believed(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec()).id
    words = LastWords(reason="idle", at_ms=round(time.time() * 1000))
    assert not last_words.inactive(engine.store.read(sandbox_id), words)
    late = dataclasses.replace(engine.store.read(sandbox_id), spec=SandboxSpec(auto_stop=60.0))
    for at_ms in (0, -1, 2**62):  # whatever clock it had, it ended between its start and now
        stopped = last_words.stopped(late, LastWords(reason="idle", at_ms=at_ms))
        assert stopped.stopped_at is not None
        assert late.started_at is not None
        assert late.started_at <= stopped.stopped_at <= time.time()


def test_a_stopped_sandbox_still_ends_with_its_owner(engine: Engine) -> None:
    sandbox_id = engine.create(SandboxSpec()).id
    with subprocess.Popen(["sleep", "600"]) as owner:
        process = ProcessId.of(owner.pid)
        engine.changes.save(dataclasses.replace(engine.store.read(sandbox_id), lease=process))
        engine.lifecycle.stop(sandbox_id, 0)
        assert engine.get(sandbox_id).leased_to == owner.pid
        owner.kill()
    with pytest.raises(errors.SandboxNotFound):
        engine.get(sandbox_id)


def test_a_leased_sandbox_is_leased_again_after_a_restart(engine: Engine) -> None:
    code = (
        "import sys; from skerry import Sandbox\n"
        "with Sandbox.create(name='leased') as s:\n"
        "    s.stop(); s.exec('true'); s.restart(); s.stop(); s.start()\n"
        "    print('ready', flush=True); sys.stdin.read()\n"
    )
    env = {**os.environ, "SKERRY_HOME": str(engine.store.home)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        sandbox_id = engine.find("leased").id
        owner.kill()
    until(lambda: not inventory.processes_of(sandbox_id))  # the agent itself ends it: nobody has swept
    with pytest.raises(errors.SandboxNotFound):
        engine.get(sandbox_id)


def test_destroying_gracefully_lets_processes_end(engine: Engine, tmp_path: Path) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    told = tmp_path / "told"
    script = "trap 'echo ended; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    process = sandbox.processes.spawn(script)
    seen: list[str] = []

    def follow() -> None:
        with contextlib.suppress(errors.SkerryError), process.attach(since=0) as stream:
            seen.extend(chunk.data.decode() for chunk in stream)

    reader = threading.Thread(target=follow)
    reader.start()
    until(lambda: "ready" in "".join(seen))
    sandbox.destroy(graceful=True, timeout=20)
    reader.join()
    assert "ended" in "".join(seen)
    assert not told.exists()
    stubborn = connect(engine, engine.create(SandboxSpec()).id)
    stubborn.processes.spawn("trap '' TERM; echo > ready; while :; do sleep 0.05; done")
    until(lambda: stubborn.files.exists("ready"))
    began = time.monotonic()
    stubborn.destroy(graceful=True, timeout=1)
    assert 0.9 < time.monotonic() - began < 20
    failed = connect(engine, engine.create(SandboxSpec()).id)
    fail(engine, failed.id)
    failed.destroy(graceful=True)
    assert engine.list() == []


def test_a_destroy_does_not_wait_for_somebody_elses_patience(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    sandbox.processes.spawn("trap '' TERM; echo > ready; while :; do sleep 0.05; done")
    until(lambda: sandbox.files.exists("ready"))
    stopping = threading.Thread(target=lambda: engine.lifecycle.stop(sandbox.id, 300.0))
    stopping.start()
    until(lambda: engine.get(sandbox.id).state is State.STOPPING)
    Engine(engine.store.home).destroy(sandbox.id)
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
