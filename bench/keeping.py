"""Snapshots, clones and forks: of a sandbox with 5,000 files, beside copying the files."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench import floor
from bench.results import Results
from bench.skerry_ops import LIFETIME, TRUE, SkerryBackend
from skerry import AsyncSandbox
from skerry.core.registry import provider
from skerry.providers.local import LocalProvider

FILES = 5_000
SIZES = {"100 MB": 100_000_000, "1 GB": 1_000_000_000}
COPIES = 4
"""How many trees are really copied; the time for as many as are forked is scaled from them."""
DISK = 4_000_000_000
WRITE = """
import os, sys
size = int(sys.argv[1]) // int(sys.argv[2])
for number in range(int(sys.argv[2])):
    os.makedirs(f"tree/{number % 50}", exist_ok=True)
    with open(f"tree/{number % 50}/{number}", "wb") as file:
        file.write(os.urandom(size))
"""


@asynccontextmanager
async def filled(skerry: SkerryBackend, size: int) -> AsyncIterator[AsyncSandbox]:
    """A sandbox with that many bytes in its files, not yet written back."""
    sandbox = await AsyncSandbox.create(timeout=LIFETIME, resources={"disk": DISK})
    try:
        skerry.ids.add(sandbox.id)
        await sandbox.exec(["python3", "-c", WRITE, str(size), str(FILES)], check=True, timeout=600)
        yield sandbox
    finally:
        for snapshot in await sandbox.snapshots.list():
            await sandbox.snapshots.delete(snapshot)
        await sandbox.destroy()
        await asyncio.to_thread(_settle)


def _settle() -> None:
    """Wait until the kernel has freed what was deleted: its work in the background would slow down what comes next."""
    pool = Path(os.environ["SKERRY_HOME"]) / "pool"
    subprocess.run(["btrfs", "subvolume", "sync", str(pool)], check=False, capture_output=True)


class Standstill:
    """How long sandboxes of this process stand still: from the order to freeze to the order to thaw."""

    def __init__(self) -> None:
        chosen = provider("local")
        assert isinstance(chosen, LocalProvider)
        groups = chosen.engine.cgroups
        self.seconds: list[float] = []
        freeze, thaw, begun = groups.freeze, groups.thaw, [0.0]

        def timed_freeze(sandbox_id: str, timeout: float = 10.0) -> None:
            begun[0] = time.perf_counter()
            freeze(sandbox_id, timeout)

        def timed_thaw(sandbox_id: str) -> None:
            thaw(sandbox_id)
            if begun[0]:
                self.seconds.append(time.perf_counter() - begun[0])
                begun[0] = 0.0

        groups.freeze, groups.thaw = timed_freeze, timed_thaw  # type: ignore[method-assign]


async def snapshots(skerry: SkerryBackend, label: str, n: int, results: Results, advance: Callable[[], None]) -> None:
    """The first snapshot of `n` sandboxes whose files have been written back, and of one whose have not."""
    samples = results.samples
    still = Standstill()
    async with filled(skerry, SIZES[label]) as sandbox:
        samples[f"skerry.snapshot {label} dirty"] = [await _timed(sandbox)]
        samples[f"skerry.snapshot {label} dirty, stands still"] = still.seconds[-1:]
    advance()
    for _ in range(n):
        async with filled(skerry, SIZES[label]) as sandbox:
            await asyncio.to_thread(os.sync)
            await sandbox.exec("echo changed > tree/1/1; echo new > new", check=True)
            samples.setdefault("floor", []).append(floor.spawn())
            samples.setdefault(f"skerry.snapshot {label}", []).append(await _timed(sandbox))
            samples.setdefault(f"skerry.snapshot {label}, stands still", []).append(still.seconds[-1])
        advance()


async def _timed(sandbox: AsyncSandbox) -> float:
    start = time.perf_counter()
    await sandbox.snapshots.create()
    return time.perf_counter() - start


async def copies(
    skerry: SkerryBackend, n: int, forks: int, directory: Path, results: Results, advance: Callable[[], None]
) -> None:
    """Clones and a fork of sandboxes with 100 MB, creates beside them, and the same files copied by cp -a."""
    samples = results.samples
    for _ in range(n):
        async with filled(skerry, SIZES["100 MB"]) as sandbox:
            await asyncio.to_thread(os.sync)
            samples.setdefault("floor", []).append(floor.spawn())
            samples.setdefault("skerry.create", []).append(await _create(skerry))
            samples.setdefault("skerry.clone", []).append(await _clone(skerry, sandbox))
        advance()
    async with filled(skerry, SIZES["100 MB"]) as sandbox:
        await asyncio.to_thread(os.sync)
        samples["skerry.fork"] = [await _fork(skerry, sandbox, forks, results)]
        advance()
    results.facts["forks"] = forks
    samples["cp -a of the tree"] = await asyncio.to_thread(_copy_trees, directory)
    advance()


async def _create(skerry: SkerryBackend) -> float:
    start = time.perf_counter()
    async with skerry.box():
        return time.perf_counter() - start


async def _clone(skerry: SkerryBackend, sandbox: AsyncSandbox) -> float:
    start = time.perf_counter()
    copy = await sandbox.clone()
    try:
        skerry.ids.add(copy.id)
        await copy.exec(TRUE, check=True)
        return time.perf_counter() - start
    finally:
        await copy.destroy()


async def _fork(skerry: SkerryBackend, sandbox: AsyncSandbox, n: int, results: Results) -> float:
    """Wait until the last box has answered with what it found in a file."""
    start = time.perf_counter()
    made = await sandbox.fork(n)
    boxes = [each.sandbox for each in made if each.sandbox is not None]
    try:
        skerry.ids.update(box.id for box in boxes)
        answers = await asyncio.gather(*(box.exec("wc -c < tree/7/7") for box in boxes))
        seconds = time.perf_counter() - start
        good = sum(answer.stdout.strip() == str(SIZES["100 MB"] // FILES) for answer in answers)
        results.facts["forks_answered"] = good
        results.errors.update({"fork": [repr(each.error) for each in made if each.error]} if good < n else {})
        return seconds
    finally:
        await asyncio.gather(*(box.destroy() for box in boxes))


def _copy_trees(directory: Path) -> list[float]:
    """Seconds of `cp -a` of a tree of the same files, on the disk beside the pool; the page cache takes the writes."""
    source = directory / "keeping"
    size = SIZES["100 MB"] // FILES
    for number in range(FILES):
        path = source / str(number % 50) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    found = []
    for number in range(COPIES):
        target = directory / f"keeping-{number}"
        found.append(floor.copy_tree(source, target))
        shutil.rmtree(target)
    shutil.rmtree(source)
    return found
