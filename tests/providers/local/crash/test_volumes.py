"""kill -9 of a client that works with volumes: those whose create returned are there, whole; of the others nothing."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Sandbox, Volumes
from tests import inventory

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "10"))
VICTIM = Path(__file__).with_name("volume_victim.py")


WORDS = ("making", "mounting", "written", "destroyed", "deleting")


def kill_a_client(prefix: str, word: str, chance: random.Random) -> list[list[str]]:
    """Kill a client at a random moment after a word of it; what it said."""
    with subprocess.Popen([sys.executable, str(VICTIM), prefix], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        said: list[list[str]] = []
        while not said or said[-1][0] != word:
            said.append(victim.stdout.readline().split())
        time.sleep(chance.uniform(0, 0.1))
        victim.send_signal(signal.SIGKILL)
        said += [line.split() for line in victim.stdout if line.endswith("\n")]
    return said


def sweep() -> None:
    """As the next command of anybody would: in a process of its own."""
    subprocess.run([sys.executable, "-m", "skerry", "gc"], check=True, capture_output=True, timeout=60)


def play_round(number: int, chance: random.Random, home: Path) -> dict[str, int]:
    prefix = f"vc-{number}-{chance.randrange(10**6)}"
    made, unknown, hashes = set(), set(), {}
    for word, name, *rest in kill_a_client(prefix, WORDS[number % len(WORDS)], chance):
        if word in ("making", "deleting"):
            made.discard(name)
            unknown.add(name)
        elif word == "made":
            unknown.discard(name)
            made.add(name)
        elif word == "written":
            hashes[name] = rest[0]
        elif word == "deleted":
            unknown.discard(name)
    sweep()
    there = {info.name: info for info in Volumes().list() if info.name.startswith(prefix)}
    assert made <= set(there), f"lost {made - set(there)}"
    assert set(there) <= made | unknown, f"leaked {set(there) - made - unknown}"
    assert {path.name for path in (home / "pool/volumes").iterdir()} == {info.name for info in Volumes().list()}
    assert not list((home / "volumes").glob("*.new"))
    for name in made & set(hashes):
        data = (home / "pool/volumes" / name / "file").read_bytes()
        assert hashlib.sha256(data).hexdigest() == hashes[name]
    for box in [info for info in Sandbox.list() if info.name and info.name.startswith(prefix)]:
        sandbox = Sandbox.connect(box.id)
        assert sandbox.exec("ls /data", timeout=10).ok
        sandbox.destroy()
    there = {info.name: info for info in Volumes().list() if info.name.startswith(prefix)}
    for name, info in there.items():
        assert info.sandboxes == ()
        Volumes().delete(name)
    return {"volumes kept": len(made), "hashes compared": len(made & set(hashes)), "answer under way": len(unknown)}


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_killed_clients_lose_and_leak_no_volume(skerry_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance = random.Random(seed)
    Sandbox.list()
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
            print(f"\nvolumes: {ROUNDS} rounds, seed {seed}: {totals}")
    assert inventory.left(before, after) == {}
    assert totals["hashes compared"], "no round had anything to lose, so this proves nothing"


DYING = """\
import os
from skerry import Sandbox, VolumeMount
from skerry.providers.local.storage.volumes import Volumes
real = Volumes._make
def make(self, volume):
    real(self, volume)
    print("made", volume.name, flush=True)
    os._exit(9)
Volumes._make = make
Sandbox.create(name="dies", volumes=[VolumeMount(name="of-the-dead", path="/data", persistent=False)])
"""


def test_a_volume_that_create_made_goes_with_a_sandbox_that_was_never_complete() -> None:
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (9, "made of-the-dead\n"), done.stderr
    sweep()
    assert "of-the-dead" not in [info.name for info in Volumes().list()]
    assert "dies" not in [info.name for info in Sandbox.list()]
