"""Stopping, starting, freezing, resetting: what stays, what goes, what is refused, and what a crash in between leaves."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors, transitions
from skerry.core.models import Changes, Resources, SandboxInfo, SandboxSpec, State
from skerry.providers.local import LocalProvider, host
from skerry.providers.local.engine import Engine
from tests import inventory
from tests.providers.local.sandbox.conftest import PATIENCE, connect, each_storage, fail, until


@each_storage
def test_a_stopped_sandbox_keeps_files_and_variables_and_nothing_else(engine: Engine) -> None:
    made = engine.create(SandboxSpec(env={"A": "1", "GONE": "x"}, secrets={"KEY": "s3cret"}, timeout=600))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.exec("chmod 640 kept; ln -s kept link")
    sandbox.env.set("B", "two\udc80words")
    sandbox.env.unset("GONE")
    sandbox.processes.spawn("sleep 600")
    info = sandbox.stop()
    assert (info.state, info.expires_at, info.started_at, info.reason) == (State.STOPPED, None, None, None)
    assert not inventory.processes_of(made.id)
    assert not engine.cgroups.exists(made.id)
    assert engine.store.slot_of(made.id) is None
    assert {path.name for path in engine.store.directory(made.id).iterdir()} == {"lock", "record.json", "events.jsonl"}
    assert engine.store.read(made.id).env == {"A": "1", "B": "two\udc80words"}
    assert sandbox.stop().state is State.STOPPED
    info = sandbox.start()
    assert info.expires_at is not None
    assert abs(info.expires_at - time.time() - 600) < 30
    assert sandbox.exec("cat kept; stat -c '%a %U' kept; readlink link; echo $A$GONE$KEY").stdout == (
        "data640 user\nkept\n1s3cret\n"
    )
    assert sandbox.env.get("B") == "two\udc80words"
    assert sandbox.processes.list() == []
    assert [event.type for event in engine.events(made.id, 0)] == ["created", "ready", "stopped", "started"]


def test_a_start_closes_the_connection_to_what_somebody_else_has_stopped(engine: Engine, home: Path) -> None:
    sandbox_id = engine.create(SandboxSpec(timeout=60.0)).id
    Engine(home).lifecycle.stop(sandbox_id, 0.0)
    engine.lifecycle.start(sandbox_id)
    gc.collect()  # an open socket that nobody has any more is a warning, and warnings are errors


def test_stopping_asks_first_and_kills_after_the_time_given(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    polite = "trap 'sleep 0.2; echo ended > polite; exit' TERM; echo > ready1; while :; do sleep 0.05; done"
    sandbox.processes.spawn(polite)
    sandbox.processes.spawn("trap '' TERM; echo > ready2; while :; do sleep 0.05; done")
    until(lambda: sandbox.files.exists("ready1") and sandbox.files.exists("ready2"))
    began = time.monotonic()
    sandbox.stop(timeout=2.0)
    assert 1.9 < time.monotonic() - began < 20
    assert not inventory.processes_of(sandbox.id)
    assert sandbox.files.read("polite") == b"ended\n"
    sandbox.processes.spawn("trap '' TERM; echo > ready3; while :; do sleep 0.05; done")
    until(lambda: sandbox.files.exists("ready3"))
    began = time.monotonic()
    sandbox.stop(timeout=0)
    assert time.monotonic() - began < 5
    with pytest.raises(errors.InvalidArgument):
        sandbox.stop(timeout=-1)


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.STOPPED, State.ARCHIVED, State.FAILED])
def test_what_a_state_does_not_allow_is_a_conflict_and_changes_nothing(engine: Engine, state: State) -> None:
    sandbox_id = engine.create(SandboxSpec()).id
    lifecycle = engine.lifecycle
    if state is State.PAUSED:
        lifecycle.pause(sandbox_id)
    elif state is State.FAILED:
        fail(engine, sandbox_id)
    elif state is not State.RUNNING:
        lifecycle.stop(sandbox_id, 0)
        engine.changes.save(dataclasses.replace(engine.store.read(sandbox_id), state=state))
    before = engine.store.read(sandbox_id)
    operations: dict[str, Callable[[], SandboxInfo]] = {
        "stop": lambda: lifecycle.stop(sandbox_id, 0),
        "start": lambda: lifecycle.start(sandbox_id),
        "restart": lambda: lifecycle.restart(sandbox_id, Changes(), 0),
        "pause": lambda: lifecycle.pause(sandbox_id),
        "resume": lambda: lifecycle.resume(sandbox_id),
        "reset": lambda: lifecycle.reset(sandbox_id, hard=False),
        "recover": lambda: lifecycle.recover(sandbox_id),
    }
    refused = [name for name in operations if state not in transitions.ALLOWED[name]]
    for name in refused:
        with pytest.raises((errors.Conflict, errors.SandboxFailed), match=f"{state}|has failed"):
            operations[name]()
        assert engine.store.read(sandbox_id) == before
    assert refused, "every state refuses something"


def test_the_table_of_transitions_is_complete_and_leads_somewhere() -> None:
    assert set(transitions.NEXT) == set(State)
    for state, following in transitions.NEXT.items():
        assert state not in following
        assert state is State.DESTROYED or State.DESTROYED in following
    with pytest.raises(AssertionError):
        transitions.follow(State.STOPPED, State.PAUSED)
    with pytest.raises(errors.Conflict, match="cannot pause sandbox sb-x: it is stopped"):
        transitions.require("pause", "sb-x", State.STOPPED)


TERM_FROM_INSIDE = """
import ctypes, os, signal, struct
os.kill(1, signal.SIGTERM)
forged = struct.pack("iii4xii", signal.SIGTERM, 0, -1, 0, 0).ljust(128, b"\\0")  # SI_QUEUE from process 0
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(129 if os.uname().machine == "x86_64" else 138, 1, signal.SIGTERM, forged) == 0, os.strerror(ctypes.get_errno())
"""


@pytest.mark.parametrize(("handler", "within"), [("echo done > finished; exit", 4.0), ("", 9.0)])
def test_sigterm_from_the_machine_ends_a_sandbox_in_order(engine: Engine, handler: str, within: float) -> None:
    """As systemd sends it to every process when the machine shuts down; a stubborn process gets five seconds."""
    made = engine.create(SandboxSpec(env={"A": "1"}))
    sandbox = connect(engine, made.id, auto_start=False)
    sandbox.files.write("kept", b"data")
    sandbox.env.set("B", "2")
    waiting = sandbox.processes.spawn(f"trap '{handler}' TERM; echo ready; while :; do sleep 0.1; done")
    assert next(iter(waiting)).data == b"ready\n"
    sandbox.exec(["python3", "-c", TERM_FROM_INSIDE], user="root", check=True)
    assert sandbox.exec("echo here").stdout == "here\n"
    init = engine.store.read(made.id).init
    assert init is not None
    os.kill(init.pid, signal.SIGTERM)
    assert init.wait(within)
    info = engine.get(made.id)
    assert (info.state, info.reason) == (State.STOPPED, "its first process got SIGTERM, as when the machine shuts down")
    sandbox.start()
    assert sandbox.exec("echo $A$B; cat kept").stdout == "12\ndata"
    assert sandbox.files.exists("finished") is bool(handler)


def test_a_sandbox_that_a_shutdown_stopped_is_stopped_after_the_boot(engine: Engine, home: Path) -> None:
    """Whoever looks first finds no pool mounted, and the last words of the agent are in it."""
    made = engine.create(SandboxSpec())
    init = engine.store.read(made.id).init
    assert init is not None
    os.kill(init.pid, signal.SIGTERM)
    assert init.wait(PATIENCE)
    until(lambda: subprocess.run(["umount", home / "pool"], capture_output=True).returncode == 0)
    info = Engine(home).get(made.id)
    assert (info.state, info.reason) == (State.STOPPED, "its first process got SIGTERM, as when the machine shuts down")


@each_storage
def test_a_restart_changes_variables_and_limits(engine: Engine) -> None:
    made = engine.create(SandboxSpec(env={"A": "1"}, secrets={"KEY": "x"}))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.env.set("B", "2")
    resources: dict[str, int | str] = {"memory": "300MB", "pids": 64}
    if engine.storage.kind == "pool":
        resources["disk"] = "50MB"
    info = sandbox.restart(env={"B": "3", "C": "4"}, resources=resources)
    assert (info.state, info.resources.memory, info.resources.pids) == (State.RUNNING, 300_000_000, 64)
    assert sandbox.exec("echo $A$B$C$KEY; cat kept").stdout == "134x\ndata"
    group = next(one for one in engine.cgroups.hierarchies if "memory" in one.controllers)
    file = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    assert int((engine.cgroups.group(group, made.id) / file).read_text()) <= 300_000_000
    if engine.storage.kind == "pool":
        assert not sandbox.exec("head -c 80000000 /dev/urandom > big").ok
    assert sandbox.restart().state is State.RUNNING
    assert sandbox.exec("echo $A$B$C$KEY").stdout == "134x\n"
    sandbox.stop()
    assert sandbox.restart(env={"C": "5"}).state is State.RUNNING
    assert sandbox.exec("echo $A$B$C$KEY").stdout == "135x\n"


@each_storage
def test_a_restart_that_cannot_be_honoured_is_refused_before_anything_stops(engine: Engine) -> None:
    made = engine.create(SandboxSpec(secrets={"KEY": "x"}))
    before = engine.store.read(made.id)
    refusals: list[tuple[Changes, type[errors.SkerryError]]] = [
        (Changes(resources=Resources(memory=10**13)), errors.QuotaExceeded),
        (Changes(resources=Resources(gpu="any")), errors.Unsupported),
        (Changes(template="no-such-template"), errors.TemplateNotFound),
        (Changes(env={"KEY": "y"}), errors.InvalidArgument),
    ]
    if engine.storage.kind == "directory":
        refusals.append((Changes(resources=Resources(disk=10**9)), errors.Unsupported))
    for changes, error in refusals:
        with pytest.raises(error):
            engine.lifecycle.restart(made.id, changes, 0)
        assert engine.store.read(made.id) == before
        assert before.alive
    layered = dataclasses.replace(before, lowers=("pool/snapshots/sn-1/u", *before.lowers))
    engine.changes.save(layered)
    with pytest.raises(errors.Conflict, match="snapshot"):
        engine.lifecycle.restart(made.id, Changes(template="host"), 0)
    engine.changes.save(before)
    assert engine.lifecycle.restart(made.id, Changes(template="host"), 0).template == "host"


def test_a_paused_sandbox_stands_still_and_goes_on(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    counting = sandbox.processes.spawn("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
    assert sandbox.pause().state is State.PAUSED
    assert sandbox.pause().state is State.PAUSED
    assert engine.cgroups.frozen(sandbox.id)
    with pytest.raises(errors.SandboxStopped, match="paused") as caught:
        connect(engine, sandbox.id, auto_start=False).exec("true")
    assert "resume" in caught.value.hint
    with pytest.raises(errors.SandboxStopped, match="paused"):
        engine.lookup.running(sandbox.id)
    assert not sandbox.is_ready()
    assert sandbox.resume().state is State.RUNNING
    assert not engine.cgroups.frozen(sandbox.id)
    assert counting.poll().status == "running"
    sandbox.pause()
    assert sandbox.exec("echo woken").stdout == "woken\n"
    assert sandbox.info().state is State.RUNNING
    sandbox.pause()
    assert connect(engine, sandbox.id).exec("echo by another").stdout == "by another\n"
    assert sandbox.exec("echo and again").stdout == "and again\n"
    with pytest.raises(errors.Conflict):
        sandbox.recover()


def test_a_sandbox_whose_shells_start_one_program_after_the_other_stands_still_at_once(engine: Engine) -> None:
    """A parent that begins to wait for its vfork in that moment is one that the kernel's freezer misses."""
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    for _ in range(4):
        sandbox.processes.spawn("while :; do /bin/true; done")
    for _ in range(100):
        engine.cgroups.freeze(sandbox.id, timeout=2.0)
        engine.cgroups.thaw(sandbox.id)
        time.sleep(0.003)
    sandbox.close()


@pytest.mark.parametrize("how", ["stop", "destroy", "restart", "reset"])
def test_a_paused_sandbox_can_be_ended(engine: Engine, how: str) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    sandbox.files.write("kept", b"data")
    sandbox.processes.spawn("sleep 600")
    sandbox.pause()
    getattr(sandbox, how)()
    if how == "destroy":
        assert not inventory.processes_of(sandbox.id)
    else:
        assert sandbox.files.read("kept") == b"data"
        assert sandbox.processes.list() == []


def test_the_lifetime_of_a_paused_sandbox_ends_and_that_of_a_stopped_one_does_not(engine: Engine) -> None:
    paused, stopped = (engine.create(SandboxSpec(timeout=2.0)).id for _ in range(2))
    engine.lifecycle.stop(stopped, 0)
    engine.lifecycle.pause(paused)
    until(lambda: engine.store.read(paused).expired())
    assert engine.sweep() == [paused]
    assert engine.get(stopped).state is State.STOPPED


@each_storage
def test_a_soft_reset_leaves_files_only(engine: Engine) -> None:
    made = engine.create(SandboxSpec(env={"A": "1"}, secrets={"KEY": "x"}))
    sandbox = connect(engine, made.id)
    sandbox.files.write("kept", b"data")
    sandbox.env.set("A", "changed")
    sandbox.env.set("B", "2")
    sandbox.restart(env={"C": "3"})
    process = sandbox.processes.spawn("sleep 600")
    before = engine.store.read(made.id).init
    assert sandbox.reset().state is State.RUNNING
    assert before is not None
    assert not before.alive()
    assert sandbox.exec("echo $A$B$C$KEY; cat kept").stdout == "1x\ndata"
    with pytest.raises(errors.ProcessNotFound):
        sandbox.processes.get(process.id).kill()
    assert not sandbox.exec("pgrep -x sleep").ok


@each_storage
def test_a_hard_reset_leaves_nothing(engine: Engine) -> None:
    made = engine.create(SandboxSpec(env={"A": "1"}))
    sandbox = connect(engine, made.id)
    first = sandbox.exec("find / -xdev 2>/dev/null | grep -v ^/proc | sort", user="root").stdout
    sandbox.exec("echo x > /workspace/f; mkdir -p /opt/d; rm /etc/hosts; chmod 700 /home/user", user="root")
    assert sandbox.reset(hard=True).state is State.RUNNING
    assert sandbox.exec("find / -xdev 2>/dev/null | grep -v ^/proc | sort", user="root").stdout == first
    assert sandbox.exec("echo $A; stat -c %a /home/user; cat /etc/hosts").stdout.startswith("1\n755\n127.0.0.1")
    sandbox.stop()
    assert sandbox.reset(hard=True).state is State.RUNNING


@each_storage
def test_a_hard_reset_of_a_copy_leaves_what_it_was_made_from(engine: Engine) -> None:
    provider = LocalProvider(engine)
    source = connect(engine, engine.create(SandboxSpec(env={"A": "1"})).id)
    source.files.write("first", b"data")
    snapshot = source.snapshots.create()
    copy = Sandbox.create(provider, snapshot=snapshot)
    copy.files.write("second", b"data")
    copy.files.remove("first")
    copy.reset(hard=True)
    assert copy.exec("cat first; ls; echo $A").stdout == "datafirst\n1\n"
    with pytest.raises(errors.Conflict, match="snapshot"):
        copy.restart(template="host")
    copy.stop()
    source.destroy()
    assert copy.exec("cat first").stdout == "data"
    copy.destroy()
    source.snapshots.delete(snapshot.id)


@each_storage
def test_a_reset_that_leaves_something_is_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    sandbox.files.write("left", b"data")
    monkeypatch.setattr(engine.storage, "remove", lambda path: None)
    with pytest.raises(errors.Corrupted, match="outlived"):
        engine.lifecycle.reset(sandbox.id, hard=True)
    monkeypatch.undo()
    assert engine.get(sandbox.id).state is State.STOPPED
    assert not sandbox.files.exists("left")  # whoever came next has finished it


@each_storage
def test_a_failed_sandbox_is_recovered_with_its_files(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec(env={"A": "1"})).id)
    sandbox.files.write("kept", b"data")
    fail(engine, sandbox.id)
    with pytest.raises(errors.SandboxFailed) as caught:
        sandbox.exec("true")
    assert "recover" in caught.value.hint
    assert sandbox.recover().state is State.RUNNING
    assert sandbox.exec("cat kept; echo $A").stdout == "data1\n"
    with pytest.raises(errors.Conflict):
        sandbox.recover()


@each_storage
def test_a_sandbox_whose_files_are_gone_stays_failed_until_it_is_reset(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    fail(engine, sandbox.id)
    engine.storage.remove(engine.storage.uppers / sandbox.id)
    for _ in range(2):
        with pytest.raises(errors.Corrupted, match="missing"):
            sandbox.recover()
        assert engine.get(sandbox.id).state is State.FAILED
    assert sandbox.reset(hard=True).state is State.RUNNING
    sandbox.stop()
    engine.storage.remove(engine.storage.uppers / sandbox.id)
    with pytest.raises(errors.Corrupted, match="missing"):
        sandbox.start()
    assert engine.get(sandbox.id).state is State.STOPPED


@pytest.mark.parametrize("operation", ["start", "restart", "recover", "reset"])
def test_one_that_does_not_start_is_what_it_was_and_can_be_tried_again(
    engine: Engine, operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    sandbox.files.write("kept", b"data")
    if operation == "recover":
        fail(engine, sandbox.id)
    else:
        sandbox.stop()
    broken = tmp_path / "crun"
    broken.write_text("#!/bin/sh\necho 'something is wrong' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(host, "_search", lambda name: str(broken) if name == "crun" else shutil.which(name))
    with pytest.raises(errors.SandboxFailed):
        getattr(sandbox, operation)()
    monkeypatch.undo()
    info = engine.get(sandbox.id)
    assert info.state is (State.FAILED if operation == "recover" else State.STOPPED)
    assert info.reason
    assert engine.store.slot_of(sandbox.id) is None
    assert getattr(sandbox, operation)().state is State.RUNNING
    assert sandbox.files.read("kept") == b"data"
    assert sandbox.info().reason is None


PENDING = {
    "stop": (State.STOPPING, {}, State.STOPPED),
    "start": (State.RESTORING, {}, State.STOPPED),
    "restart": (State.STOPPING, {}, State.STOPPED),
    "reset": (State.RESTORING, {"how": "soft"}, State.STOPPED),
    "recover": (State.RESTORING, {}, State.FAILED),
    "pause": (None, {}, State.RUNNING),
    "resume": (None, {}, State.RUNNING),
}


@pytest.mark.parametrize("pending", PENDING)
def test_who_dies_at_a_change_leaves_it_to_the_next(engine: Engine, pending: str) -> None:
    during, data, after = PENDING[pending]
    sandbox = connect(engine, engine.create(SandboxSpec(env={"A": "1"})).id)
    sandbox.files.write("kept", b"data")
    engine.changes.begin(engine.store.read(sandbox.id), pending, state=during, **data)
    if pending in ("pause", "resume"):
        engine.cgroups.freeze(sandbox.id)
    info = Engine(engine.store.home).get(sandbox.id)
    assert info.state is after
    assert engine.store.read(sandbox.id).pending is None
    assert bool(inventory.processes_of(sandbox.id)) is (after is State.RUNNING)
    if after is State.FAILED:
        sandbox.recover()
    assert connect(engine, sandbox.id).exec("cat kept; echo $A", timeout=30).stdout == "data1\n"


def test_a_change_under_way_shows_in_the_state_and_others_wait(engine: Engine) -> None:
    sandbox = connect(engine, engine.create(SandboxSpec()).id)
    sandbox.processes.spawn("trap 'sleep 1; exit' TERM; echo > ready; while :; do sleep 0.05; done")
    until(lambda: sandbox.files.exists("ready"))
    stopping = threading.Thread(target=lambda: engine.lifecycle.stop(sandbox.id, 20.0))
    stopping.start()
    until(lambda: engine.get(sandbox.id).state is State.STOPPING)
    other = Engine(engine.store.home)
    with pytest.raises(errors.SandboxStopped):
        other.lookup.running(sandbox.id)
    assert other.lifecycle.start(sandbox.id).state is State.RUNNING  # after the stop
    stopping.join()
    assert [event.type for event in engine.events(sandbox.id, 0)][-2:] == ["stopped", "started"]


RANDOM = """
import random, sys
from skerry.core.errors import Conflict, SandboxFailed, SandboxNotFound
from skerry.core.models import Changes
from skerry.providers.local.engine import Engine
chance, engine, sandbox_id = random.Random(int(sys.argv[1])), Engine(), sys.argv[2]
life = engine.lifecycle
operations = [
    lambda: life.stop(sandbox_id, 0), lambda: life.start(sandbox_id), lambda: life.pause(sandbox_id),
    lambda: life.resume(sandbox_id), lambda: life.restart(sandbox_id, Changes(), 0),
    lambda: life.reset(sandbox_id, hard=False), lambda: engine.get(sandbox_id), lambda: engine.sweep(),
]
done = 0
for _ in range(25):
    try:
        chance.choice(operations)()
        done += 1
    except Conflict:
        pass
if sys.argv[3] == "destroy":
    engine.destroy(sandbox_id)
print(done)
"""


def test_two_processes_at_random_on_one_sandbox_never_break_it(engine: Engine) -> None:
    env = {**os.environ, "SKERRY_HOME": str(engine.store.home)}
    seed = random.randrange(10**6)
    sandbox = connect(engine, engine.create(SandboxSpec(env={"A": "1"}, timeout=600)).id)
    sandbox.files.write("kept", b"data")

    def play(*ends: str) -> list[subprocess.CompletedProcess[str]]:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", RANDOM, str(seed + number), sandbox.id, end],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, end in enumerate(ends)
        ]
        outputs = [process.communicate(timeout=240) for process in running]
        return [
            subprocess.CompletedProcess(process.args, process.returncode, *output)
            for process, output in zip(running, outputs, strict=True)
        ]

    for done in play("stay", "stay"):
        assert (done.returncode, int(done.stdout) > 5) == (0, True), f"seed {seed}: {done.stderr}"
    info = engine.get(sandbox.id)
    assert info.state in (State.RUNNING, State.STOPPED, State.PAUSED), f"seed {seed}"
    assert connect(engine, sandbox.id).exec("cat kept; echo $A", timeout=60).stdout == "data1\n", f"seed {seed}"
    for done in play("stay", "destroy"):
        assert done.returncode == 0 or "SandboxNotFound" in done.stderr, f"seed {seed}: {done.stderr}"
    with pytest.raises(errors.SandboxNotFound):
        engine.get(sandbox.id)
