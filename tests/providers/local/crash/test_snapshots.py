"""kill -9 in the middle of taking, restoring, copying and deleting: nothing is lost, and the next command leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Sandbox, Snapshots, State
from skerry.core import registry
from skerry.core.models import SandboxInfo
from skerry.providers.local import LocalProvider
from skerry.providers.local.storage.snapshots import snapshots_in
from tests import inventory

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "10"))
MODES = ["create", "restore", "clone", "fork", "delete"]
KEEPER = Path(__file__).with_name("keeper.py")
FILES = "for i in $(seq 200); do mkdir -p d$((i % 7)); head -c 3000 /dev/urandom > d$((i % 7))/$i; done; ln -s d1 link"


def kill_a_keeper(mode: str, sandbox_id: str, snapshot: str, chance: random.Random) -> None:
    program = [sys.executable, str(KEEPER), mode, sandbox_id, snapshot]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "go\n"
        time.sleep(chance.uniform(0, chance.choice((0.03, 0.3))))
        keeper.send_signal(signal.SIGKILL)
        assert keeper.wait() == -signal.SIGKILL


def sweep() -> None:
    subprocess.run([sys.executable, "-m", "skerry", "gc"], check=True, capture_output=True, timeout=120)


def digest_on_disk(info: SandboxInfo, home: Path) -> str:
    """Of what a sandbox that does not run has written; it has no layers of snapshots."""
    tree = home / "pool/uppers" / info.id / "u/workspace"
    command = "find . -printf '%p %y %m %U:%G %l\\n' | sort; find . -type f -exec sha256sum {} + | sort"
    return subprocess.run(["sh", "-c", command], cwd=tree, check=True, capture_output=True, text=True).stdout


def needed_trees() -> set[str]:
    """Every tree that a snapshot that is listed, or a sandbox, has a right to."""
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    engine = provider.engine
    needed = {kept.id for kept in engine.snapshots.list()}
    for sandbox_id in engine.store.ids():
        needed |= set(snapshots_in(engine.store.read(sandbox_id).lowers))
    return needed


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_killed_keepers_lose_nothing_and_leave_nothing(skerry_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance = random.Random(seed)
    Sandbox.list()
    before = inventory.take(skerry_home)
    totals = {"snapshots": 0, "copies": 0, "stopped": 0}
    sandbox: Sandbox | None = None
    try:
        for number in range(ROUNDS):
            if sandbox is None:
                sandbox = Sandbox.create(timeout=3000)
                sandbox.exec(FILES, check=True)
                base = sandbox.snapshots.create()
                digest, disk = sandbox.files.hash("/workspace"), digest_on_disk(sandbox.info(), skerry_home)
            kill_a_keeper(MODES[number % len(MODES)], sandbox.id, base.id, chance)
            sweep()
            sandbox = check_round(sandbox, base.id, digest, disk, skerry_home, totals, seed)
        sweep()
    finally:
        with capsys.disabled():
            print(f"\nkeepers: {ROUNDS} rounds, seed {seed}: {totals}")
        if sandbox is not None:
            sandbox.destroy()
        for snapshot in Snapshots().list():
            Snapshots().delete(snapshot)
    sweep()
    after = inventory.settle(skerry_home, before)
    with capsys.disabled():
        print(f"keepers: before {before.counts()}\nkeepers: after  {after.counts()}")
    assert inventory.left(before, after) == {}


def check_round(
    sandbox: Sandbox, base: str, digest: str, disk: str, home: Path, totals: dict[str, int], seed: int
) -> Sandbox | None:
    """The sandbox, if it still runs; one that was being restored may be stopped, complete."""
    for info in Sandbox.list(labels={"copy": "yes"}):
        copy = Sandbox.get(info.id)
        assert copy.files.hash("/workspace") == digest, f"seed {seed}: a copy lacks something"
        copy.destroy()
        totals["copies"] += 1
    left: Sandbox | None = sandbox
    if (info := sandbox.info()).state is State.RUNNING:
        assert Sandbox.connect(sandbox.id).files.hash("/workspace") == digest, f"seed {seed}: files are lost"
    else:
        assert info.state is State.STOPPED, f"seed {seed}: {info.state}, {info.reason}"
        assert digest_on_disk(info, home) == disk, f"seed {seed}: files are lost"
        totals["stopped"] += 1
    for snapshot in Snapshots().list():
        totals["snapshots"] += 1
        if snapshot.id != base:
            Snapshots().delete(snapshot)
    if info.state is State.STOPPED:
        with Sandbox.create(snapshot=base, timeout=600) as again:
            assert again.files.hash("/workspace") == digest
        sandbox.destroy()
        Snapshots().delete(base)
        left = None
    sweep()
    trees = {path.name for path in (home / "pool/snapshots").iterdir()}
    assert trees == needed_trees(), f"seed {seed}: trees of nobody"
    return left
