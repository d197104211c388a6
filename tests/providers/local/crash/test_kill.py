"""kill -9 of a client at random moments: exactly the sandboxes whose create returned are there, usable; of the rest nothing.

A sandbox that was being created or destroyed when the client died may be there or not: its answer was under way. If it is there, it must work.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core import errors
from tests import inventory

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "20"))
MODES = ["create", "lease", "exec", "transfer", "destroy", "open"]
VICTIM = Path(__file__).with_name("victim.py")


@pytest.fixture(autouse=True)
def temporary_files_of_the_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they transferred goes with what else a test has."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@dataclass
class Story:
    """What a victim said before it died."""

    alive: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def hear(self, word: str, name: str) -> None:
        if word in ("creating", "entering", "entered", "destroying", "leaving"):
            self.alive.discard(name)
            if word == "entered":
                self.unknown.discard(name)  # leased: it ends with its client
            else:
                self.unknown.add(name)
        elif word == "created":
            self.unknown.discard(name)
            self.alive.add(name)
        elif word == "destroyed":
            self.unknown.discard(name)


def kill_a_client(mode: str, prefix: str, chance: random.Random) -> Story:
    """Let a client work, kill it at a random moment after its first word, and return what it said."""
    victim = subprocess.Popen([sys.executable, str(VICTIM), mode, prefix], stdout=subprocess.PIPE, text=True)
    with victim:
        assert victim.stdout is not None
        story, heard = Story(), 0
        waits = {"exec": "go", "transfer": "go", "destroy": "go"}.get(mode, "creating")
        delay = chance.uniform(0, chance.choice((0.02, 0.12)))  # a create takes about 15 ms
        for line in victim.stdout:
            heard += 1
            word, _, name = line.strip().partition(" ")
            if name:
                story.hear(word, name)
            if word == waits:
                break
        time.sleep(delay)
        victim.send_signal(signal.SIGKILL)
        for line in victim.stdout:
            word, _, name = line.strip().partition(" ")
            if name:
                story.hear(word, name)
    assert heard, "the victim died before it did anything"
    return story


def sweep() -> None:
    """As the next `skerry` command of anybody would: in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "skerry", "gc"], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip(), "gc said nothing, so it did nothing"


def assert_usable(name: str) -> None:
    sandbox = Sandbox.connect(name)
    try:
        assert sandbox.exec("echo alive", timeout=10).stdout == "alive\n"
        sandbox.files.write("/workspace/new", b"x")
    finally:
        sandbox.destroy()


def play_round(number: int, chance: random.Random, home: Path) -> dict[str, int]:
    mode = MODES[number % len(MODES)]
    story = kill_a_client(mode, f"crash-{number}-{chance.randrange(10**6)}", chance)
    sweep()
    there = {info.name for info in Sandbox.list() if info.name and info.name.startswith(f"crash-{number}-")}
    assert story.alive <= there, f"{mode}: lost {story.alive - there}"
    assert there <= story.alive | story.unknown, f"{mode}: leaked {there - story.alive - story.unknown}"
    groups = {Path(path).name for path in inventory.take(home).cgroups}
    ids = {info.id for info in Sandbox.list()}
    assert groups <= ids, f"{mode}: cgroups of nobody {groups - ids}"
    for name in there:
        assert_usable(name)
    return {"kept": len(story.alive), "answer under way": len(there - story.alive)}


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_killed_clients_leave_exactly_what_they_own(skerry_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance = random.Random(seed)
    Sandbox.list()  # the sweep of this process's first use is done
    before = inventory.take(skerry_home)
    totals: dict[str, int] = {}
    try:
        for number in range(ROUNDS):
            for what, count in play_round(number, chance, skerry_home).items():
                totals[what] = totals.get(what, 0) + count
        sweep()
        after = inventory.settle(skerry_home, before)
    finally:
        with capsys.disabled():
            print(f"\ncrash: {ROUNDS} rounds, seed {seed}: {totals}")
    with capsys.disabled():
        print(f"crash: before {before.counts()}\ncrash: after  {after.counts()}")
    assert inventory.left(before, after) == {}


def test_a_killed_client_takes_its_leased_sandbox_along(skerry_home: Path) -> None:
    Sandbox.list()
    before = inventory.take(skerry_home)
    with subprocess.Popen([sys.executable, str(VICTIM), "hold", "held"], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert any(line == "entered held\n" for line in victim.stdout)
        victim.kill()
    sweep()
    assert [info for info in Sandbox.list() if info.name == "held"] == []
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


def test_a_killed_agent_fails_its_sandbox_and_keeps_its_files(skerry_home: Path) -> None:
    from skerry.providers.local.sandbox import record

    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write("/workspace/precious", b"data")
    folder = skerry_home / "sandboxes" / sandbox.id
    init = record.read(folder).init
    assert init is not None
    os.kill(init.pid, signal.SIGKILL)
    with pytest.raises((errors.ConnectionLost, errors.SandboxFailed)):
        sandbox.exec("sleep 10", timeout=20)
    assert Sandbox.get(sandbox.id).info().state == "failed"
    sweep()
    assert (skerry_home / "pool/uppers" / sandbox.id / "u/workspace/precious").read_bytes() == b"data"
    with pytest.raises(errors.SandboxFailed):
        Sandbox.connect(sandbox.id).exec("true")
    sandbox.destroy()
    assert not folder.exists()


def test_an_exec_of_a_killed_client_is_killed(skerry_home: Path) -> None:
    name = f"crash-exec-{random.randrange(10**6)}"
    kill_a_client("exec", name, random.Random(1))
    sandbox = Sandbox.connect(name)
    deadline = time.monotonic() + 5
    while (
        count := sandbox.exec("ps -eo args | grep -c '[s]leep 0.03'").stdout.strip()
    ) != "0" and time.monotonic() < deadline:
        time.sleep(0.05)
    sandbox.destroy()
    assert count == "0"


def test_a_half_uploaded_file_leaves_no_trace() -> None:
    name = f"crash-transfer-{random.randrange(10**6)}"
    kill_a_client("transfer", name, random.Random(2))
    sandbox = Sandbox.connect(name)
    deadline = time.monotonic() + 5
    while len(found := sandbox.files.list("/workspace")) != 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [(info.name, info.size) for info in found] == [("data", 8 << 20)]
    sandbox.destroy()


def test_lifetime_ends_a_sandbox_without_any_client(skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    started = time.monotonic()
    sandbox = Sandbox.create(timeout=3.0)
    sandbox.processes.spawn("sleep 100")
    sandbox.close()
    while inventory.processes_of(sandbox.id) and time.monotonic() - started < 30:
        time.sleep(0.02)
    assert 3 < time.monotonic() - started < 30
    sweep()
    with pytest.raises(errors.SandboxNotFound):
        Sandbox.get(sandbox.id)
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


def test_a_background_process_outlives_its_client_and_nothing_it_wrote_is_lost() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        program = [sys.executable, str(VICTIM.with_name("spawner.py")), sandbox.id]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            number = int(client.stdout.readline())
            client.send_signal(signal.SIGKILL)
            assert client.wait() == -signal.SIGKILL
        process = sandbox.processes.get(number)
        assert process.poll().status == "running"
        sandbox.files.write("go", b"")
        with process.attach(since=0) as stream:
            written = b"".join(chunk.data for chunk in stream if chunk.stream == "stdout")
            assert stream.gap == 0
        assert written == b"".join(b"%d\n" % number for number in range(1, 10_001))
        result = sandbox.processes.get(number).wait()
        assert (result.exit_code, result.stdout_bytes, result.stderr) == (7, written, "done\n")
