"""kill -9 in the middle of stop, start, restart, pause, resume, reset and recover: the next command finishes or undoes it.

Then the sandbox is in a state in which nothing is half done, has its files and variables, and works.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core.models import State
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.sandbox import record as records
from tests import inventory
from tests.providers.local.crash.test_kill import sweep

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "10"))
VICTIM = Path(__file__).with_name("lifecycle_victim.py")
OUTCOMES = {
    "stop": {State.RUNNING, State.STOPPED},
    "start": {State.STOPPED, State.RUNNING},
    "restart": {State.RUNNING, State.STOPPED},
    "pause": {State.RUNNING, State.PAUSED},
    "resume": {State.PAUSED, State.RUNNING},
    "reset": {State.RUNNING, State.STOPPED},
    "hard": {State.RUNNING, State.STOPPED},
    "recover": {State.FAILED, State.RUNNING},
}
FILES = "cd /workspace && find . -type f | sort | xargs -r sha256sum"


def bring_to(sandbox: Sandbox, operation: str, home: Path) -> None:
    """The state in which `operation` has something to do."""
    if operation == "start":
        sandbox.stop(timeout=0)
    elif operation == "resume":
        sandbox.pause()
    elif operation == "recover":
        init = records.read(home / "sandboxes" / sandbox.id).init
        assert init is not None
        init.kill(30.0)
        assert sandbox.info().state is State.FAILED


def kill_at(operation: str, name: str, number: int, delay: float) -> bool:
    """Let a client begin, kill it after `delay`; whether it was done by then."""
    command = [sys.executable, str(VICTIM), operation, name, str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "go\n"
        time.sleep(delay)
        victim.kill()
        return victim.stdout.readline() == "done\n"


def play_round(number: int, chance: random.Random, home: Path) -> str:
    operation = list(OUTCOMES)[number % len(OUTCOMES)]
    content = chance.randbytes(100_000)
    sandbox = Sandbox.create(name=f"round-{number}", env={"A": "1"}, secrets={"KEY": "x"}, timeout=600)
    try:
        sandbox.files.write("data", content)
        sandbox.env.set("SET", "later")
        sandbox.processes.spawn("sleep 777")
        bring_to(sandbox, operation, home)
        sandbox.close()
        done = kill_at(operation, sandbox.id, number, chance.uniform(0, chance.choice((0.02, 0.1))))
        sweep()
        info = Sandbox.get(sandbox.id).info()
        assert info.state in OUTCOMES[operation], info
        record = records.read(home / "sandboxes" / sandbox.id)
        assert record.pending is None
        groups = Cgroups.detect()
        if info.state in (State.RUNNING, State.PAUSED):
            assert groups.frozen(sandbox.id) is (info.state is State.PAUSED)
        else:
            assert not inventory.processes_of(sandbox.id)
            assert not groups.exists(sandbox.id)
            assert record.slot is None
        again = Sandbox.get(sandbox.id)
        if info.state is State.FAILED:
            again.recover()
        found = again.exec(FILES, timeout=60).stdout
        kept = f"{hashlib.sha256(content).hexdigest()}  ./data\n"
        assert found == kept or (operation == "hard" and found == "" and (done or record.env is None)), found
        env = again.env.all()
        assert (env["A"], env["KEY"]) == ("1", "x")
        if operation not in ("reset", "hard", "recover"):
            assert env["SET"] == "later"
        if operation == "restart":
            changed = env.get("ROUND") == str(number)
            assert changed == (again.info().resources.pids == 100 + number % 100)
            assert changed or not done
        return f"{operation}: {info.state}"
    finally:
        Sandbox.get(sandbox.id).destroy()


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_a_change_cut_short_is_finished_or_undone(skerry_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance = random.Random(seed)
    Sandbox.list()  # the sweep of this process's first use is done
    before = inventory.take(skerry_home)
    outcomes: Counter[str] = Counter()
    try:
        for number in range(ROUNDS):
            outcomes[play_round(number, chance, skerry_home)] += 1
    finally:
        with capsys.disabled():
            print(f"\nlifecycle crash: {ROUNDS} rounds, seed {seed}: {dict(sorted(outcomes.items()))}")
    after = inventory.settle(skerry_home, before)
    with capsys.disabled():
        print(f"lifecycle crash: before {before.counts()}\nlifecycle crash: after  {after.counts()}")
    assert inventory.left(before, after) == {}
