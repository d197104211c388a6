"""kill -9 while the encrypted pool is made and mounted: nothing stays mounted, and the next use makes or mounts it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Key
from skerry.core.models import SandboxSpec
from skerry.providers.local import storage_commands
from tests.providers.local.homes import use

VICTIM = """
from skerry.providers.local.engine import Engine
from skerry.core import home
print("go", flush=True)
Engine()._home.encrypted.make()
print("done", flush=True)
"""


def loops(home: Path) -> set[str]:
    """The files of this home that are loop devices."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return {name.removeprefix(f"{home}/") for name in found if name.startswith(f"{home}/")}


def gone(home: Path, files: set[str]) -> bool:
    """Whether none of them is a loop device; the kernel lets go of one a little later."""
    end = time.monotonic() + 10
    while loops(home) & files and time.monotonic() < end:
        time.sleep(0.02)
    return not loops(home) & files


@pytest.mark.parametrize("first", [True, False], ids=["making", "mounting"])
def test_a_process_killed_while_it_makes_or_mounts_the_pool_leaves_nothing_half(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(own_home))
    monkeypatch.setenv("SKERRY_POOL_SIZE", "300MB")
    monkeypatch.setenv("SKERRY_TEST_KEY", Key.generate().hex())
    engine = use(own_home)
    if not first:
        assert subprocess.run([sys.executable, "-c", VICTIM], check=True, capture_output=True).stdout == b"go\ndone\n"
        storage_commands.unmount()
    chance, killed = random.Random(7), 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", VICTIM], stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None and victim.stdout.readline() == "go\n"
            time.sleep(chance.uniform(0, 0.15 if first else 0.06))
            victim.send_signal(signal.SIGKILL)
            killed += victim.stdout.read() == ""
        time.sleep(0.3)  # what it had started, such as `mount`, ends by itself
        engine.sweep()
        if not os.path.ismount(own_home / "encrypted"):
            assert not os.path.ismount(own_home / "encrypted.disk")
            assert gone(own_home, {"encrypted.img", "encrypted.new", "encrypted.disk/files/pool.img"})
            assert not (own_home / "encrypted.new").exists()
        storage_commands.unmount()
        assert gone(own_home, {"pool.img", "encrypted.img", "encrypted.disk/files/pool.img"})
        if first:
            (own_home / "encrypted.img").unlink(missing_ok=True)
    assert killed, "no kill was early enough to mean anything"
    record = engine.create(SandboxSpec(encrypted=True, timeout=60))
    assert record.encrypted
    engine.destroy(record.id)
