"""kill -9 of a client that builds templates, at random moments: what was said to be built works, of the rest nothing is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry import Sandbox, Templates
from skerry.sdk.templates.setup import mark
from tests import inventory
from tests.providers.local.crash.builder import CONTENT, MADE
from tests.templates.archives import docker_archive, file, layer

ROUNDS = int(os.environ.get("SKERRY_CRASH_ROUNDS", "10"))
BUILDER = Path(__file__).with_name("builder.py")


def kill_a_builder(prefix: str, image: Path, chance: random.Random) -> set[str]:
    """Let it work, kill it at a random moment after its first word; the names of what it has built."""
    program = [sys.executable, str(BUILDER), prefix, str(image)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        said = [victim.stdout.readline()]
        time.sleep(chance.uniform(0, chance.choice((0.3, 2.0, 4.0))))
        victim.send_signal(signal.SIGKILL)
        said += victim.stdout
    assert said[0].startswith("building "), "the victim died before it did anything"
    assert victim.returncode == -signal.SIGKILL, "the victim died of something else"
    return {line.split()[1] for line in said if line.startswith("built ")}


def destroy_created() -> int:
    """End the sandbox whose create was done when its owner was killed, which nothing binds to that owner any more.

    There is one at most, complete; and of a build's own, and of creates that were not done, there is none.
    """
    created = Sandbox.list()
    assert [(info.purpose, info.leased_to) for info in created] in ([], [(MADE, None)])
    for info in created:
        sandbox = Sandbox.connect(info.id)
        assert sandbox.files.exists(mark("prepared", info.id), user="root")
        sandbox.destroy()
    return len(created)


def sweep() -> None:
    program = [sys.executable, "-m", "skerry", "gc"]
    subprocess.run(program, check=True, capture_output=True, timeout=60)


def content(name: str) -> str:
    with Sandbox.create(template=name, build=False) as sandbox:
        return sandbox.exec("cat numbers tree/* | sha256sum; sha256sum -c sum", check=True).stdout


def remove_all() -> int:
    templates, removed = Templates(), 0
    while built := [info for info in templates.list() if info.digest]:
        for info in sorted(built, key=lambda info: info.built_at or 0.0, reverse=True):
            templates.remove(info.digest)
            removed += 1
    return removed


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_killed_builders_leave_only_what_is_built(
    skerry_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SKERRY_CRASH_SEED", time.time_ns() % 10**9))
    chance = random.Random(seed)
    image = docker_archive(tmp_path / "image.tar", layer(*(file(f"{n}", bytes(1000)) for n in range(100))))
    expected = subprocess.run(
        ["sh", "-c", f"{CONTENT}; cat numbers tree/* | sha256sum; echo numbers: OK"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    Sandbox.list()
    before = inventory.take(skerry_home)
    built = kept = created = 0
    try:
        for number in range(ROUNDS):
            names = kill_a_builder(f"crash-{number}", image, chance)
            sweep()
            created += destroy_created()
            sweep()
            layers = set(os.listdir(skerry_home / "pool/layers"))
            named = "".join(path.read_text() for path in (skerry_home / "templates").glob("*.json"))
            assert [digest for digest in layers if digest not in named] == []
            for name in names:
                assert content(name) == expected
            built, kept = built + len(names), kept + remove_all()
    finally:
        with capsys.disabled():
            print(
                f"\ncrash: {ROUNDS} killed builders, seed {seed}: {built} built, {kept} removed again, {created} created"
            )
    sweep()
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}
