"""kill -9 at random moments of export, import, archive and start: a sandbox has all its files, or is not there at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.archive import open_archive
from skerry.core.models import State
from skerry.providers.local.engine import Engine
from tests import inventory
from tests.providers.local.crash.test_kill import sweep

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "10"))
VICTIM = Path(__file__).with_name("export_victim.py")
MODES = ("export", "import", "archive", "archive")
"""Half of the time of the last one is bringing it back."""
FILL = "mkdir data; for n in $(seq 60); do head -c 100000 /dev/urandom > data/$n; done; rm -f /etc/hosts"


def kill_at_work(mode: str, sandbox: str, file: Path, chance: random.Random) -> None:
    program = [sys.executable, str(VICTIM), mode, sandbox, str(file)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "go\n"
        time.sleep(chance.uniform(0, 1.5))  # the moment is what is tried, not waited for
        assert victim.poll() is None, "it ended by itself"
        victim.send_signal(signal.SIGKILL)


def trees(home: Path) -> set[str]:
    return {f"{part}/{name}" for part in ("uppers", "snapshots") for name in os.listdir(home / "pool" / part)}


def check_export(home: Path, file: Path, before: set[str]) -> str:
    assert trees(home) == before, "an export left a tree"
    assert {path.name for path in file.parent.iterdir()} <= {file.name}
    if not file.exists():
        return "no file"
    with file.open("rb") as source, open_archive(source) as archive:
        archive.verify()  # whoever has its name is complete
    file.unlink()
    return "whole file"


def check_import(home: Path, name: str, wanted: str, before: set[str]) -> str:
    there = [info for info in Sandbox.list() if info.name == name]
    for info in there:
        sandbox = Sandbox.get(info.id)
        assert sandbox.files.hash("data") == wanted
        assert sandbox.exec("test ! -e /etc/hosts").exit_code == 0
        sandbox.destroy()
    assert trees(home) == before, "an import left a tree"
    return f"{len(there)} imported"


def check_archive(home: Path, sandbox: Sandbox, wanted: str) -> str:
    info = sandbox.info()
    engine = Engine(home)
    names = set(os.listdir(engine.store.directory(sandbox.id)))
    own = {tree for tree in trees(home) if sandbox.id in tree}
    if info.state is State.ARCHIVED:
        assert "archive" in names and own == set()
    else:
        assert info.state in (State.STOPPED, State.RUNNING)
        assert "archive" not in names and own == {f"uppers/{sandbox.id}"}
    assert "archive.new" not in names
    assert sandbox.files.hash("data") == wanted  # starts it
    assert sandbox.exec("test ! -e /etc/hosts").exit_code == 0
    return info.state.value


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_killed_at_states_nothing_is_lost_and_nothing_left(
    skerry_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance, outcomes = random.Random(seed), dict[str, int]()
    Sandbox.list()
    before = inventory.take(skerry_home)
    sandbox = Sandbox.create(name=f"states-{seed}", timeout=14400)
    sandbox.exec(FILL, sudo=True, check=True)
    wanted = sandbox.files.hash("data")
    given, written = tmp_path / "given", tmp_path / "out" / "file"
    written.parent.mkdir()
    sandbox.export_state(given)
    try:
        for number in range(ROUNDS):
            mode = MODES[number % len(MODES)]
            sandbox.start()
            standing = trees(skerry_home)
            kill_at_work(mode, sandbox.name or "", given if mode == "import" else written, chance)
            sweep()
            if mode == "export":
                outcome = check_export(skerry_home, written, standing)
                assert sandbox.exec("echo alive", timeout=30).stdout == "alive\n"  # it is not frozen
            elif mode == "import":
                outcome = check_import(skerry_home, f"{sandbox.name}-copy", wanted, standing)
            else:
                outcome = check_archive(skerry_home, sandbox, wanted)
            outcomes[f"{mode}: {outcome}"] = outcomes.get(f"{mode}: {outcome}", 0) + 1
        sandbox.destroy()
        sweep()
        after = inventory.settle(skerry_home, before)
    finally:
        with capsys.disabled():
            print(f"\nstates: {ROUNDS} rounds, seed {seed}: {outcomes}")
    assert inventory.left(before, after) == {}
