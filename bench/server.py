"""Measures what a server adds: `python bench/server.py [--quick]`; exits with 1 when a goal is missed.

One loop compares the same command in the same sandbox locally and through the server, and a key through a terminal with
a plain pty. Then come large files beside `cp`, with the server's memory, 200 terminals at once, and how long one user
waits for a list of sandboxes while another asks for everything at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import daily, floor, neighbours
from bench.interleave import Op, interleave
from bench.machine import facts
from bench.results import Results
from bench.stats import Summary, percentile
from bench.workspace import workspace
from skerry.core.errors import SkerryError
from skerry.providers.remote import RemoteProvider
from skerry.sdk import AsyncSandbox
from skerry.sdk.terminals.stream import AsyncTerminalStream
from skerry.sdk.terminals.terminal import AsyncTerminal
from tests.server.separate import Separate

RESULTS = Path(__file__).resolve().parent / "results"
LIFETIME = 3600.0
BOXES = 10
FLAT = 64 * 10**6
"""Bytes by which the server may grow while a file of any size passes through it."""
BESIDE, SLOWEST = 10, 1.0
"""How long a list may take beside a busy user: its p95 as a multiple of the time alone, and its worst in seconds."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    rounds: int = 200
    size: int = 5 * 10**9
    terminals: int = 200
    busy: float = 60.0
    """Seconds beside a user who asks for everything."""


@dataclass
class Measured:
    """Everything of a run; times in seconds, sizes in bytes."""

    facts: dict[str, Any]
    samples: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    transfers: dict[str, dict[str, float]] = field(default_factory=dict)
    terminals: dict[str, float] = field(default_factory=dict)
    busy_memory: float = 0.0


class Peak:
    """The most memory that a server used within the block."""

    def __init__(self, server: Separate) -> None:
        self._server, self._ended = server, threading.Event()
        self.before = self.most = server.memory

    @contextmanager
    def watched(self) -> Any:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.most = max(self.most, self._server.memory)


async def beside(counts: Counts, remote: RemoteProvider, measured: Measured) -> None:
    """A command and a key, through the server and without it."""
    async with AsyncExitStack() as stack:
        far = await AsyncSandbox.create(remote, timeout=LIFETIME)
        stack.push_async_callback(far.destroy)
        near = await AsyncSandbox.connect(far.id, provider="local")
        stack.push_async_callback(near.close)

        def command(box: AsyncSandbox) -> Callable[[], Any]:
            async def sample() -> float:
                start = time.perf_counter()
                await box.exec(["/bin/true"])
                return time.perf_counter() - start

            return sample

        ops = [
            Op(name="local exec", sample=command(near), n=counts.rounds, errors=(SkerryError,)),
            Op(name="remote exec", sample=command(far), n=counts.rounds, errors=(SkerryError,)),
            Op(name="pty key", sample=await daily._local_key(stack), n=counts.rounds, errors=()),
        ]
        for name, box in (("local key", near), ("remote key", far)):
            terminal = await box.terminals.create(daily.ECHO)
            stream = await stack.enter_async_context(terminal.attach())
            await daily._until(stream, b"ready\n")
            ops.append(
                Op(name=name, sample=daily._key(terminal, stream), n=counts.rounds, errors=(SkerryError, OSError))
            )
        results = Results(facts={})
        await interleave(ops, counts.rounds, results, lambda: None)
        measured.samples |= results.samples
        measured.errors |= results.errors


def make_file(path: Path, size: int) -> None:
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for left in range(size, 0, -len(block)):
            file.write(block[: min(left, len(block))])


async def transfers(
    counts: Counts, directory: Path, server: Separate, remote: RemoteProvider, measured: Measured
) -> None:
    """One file up and down, each way in a separate sandbox, beside `cp` of it."""
    source, target = directory / "large", directory / "copy"
    await asyncio.to_thread(make_file, source, counts.size)
    measured.transfers["cp"] = {"seconds": await asyncio.to_thread(floor.copy, source, target)}
    target.unlink()
    async with await AsyncSandbox.create(remote, timeout=LIFETIME) as box:
        for name, call in (
            ("upload", lambda: box.files.upload(source, "/workspace/large")),
            ("download", lambda: box.files.download("/workspace/large", target)),
        ):
            with Peak(server).watched() as peak:
                start = time.perf_counter()
                await call()
                seconds = time.perf_counter() - start
            measured.transfers[name] = {"seconds": seconds, "memory": peak.before, "grown": peak.most - peak.before}
    same = await asyncio.create_subprocess_exec("cmp", str(source), str(target))
    if await same.wait():
        measured.errors.setdefault("download", []).append("the downloaded file differs from the uploaded one")
    shutil.rmtree(directory)


@asynccontextmanager
async def opened(remote: RemoteProvider, number: int) -> AsyncIterator[list[tuple[AsyncTerminal, AsyncTerminalStream]]]:
    """`number` terminals, over several sandboxes, all attached and answering."""
    async with AsyncExitStack() as stack:
        boxes = [await AsyncSandbox.create(remote, timeout=LIFETIME) for _ in range(BOXES)]
        for box in boxes:
            stack.push_async_callback(box.destroy)

        async def one(box: AsyncSandbox) -> tuple[AsyncTerminal, AsyncTerminalStream]:
            terminal = await box.terminals.create(daily.ECHO)
            stream = await stack.enter_async_context(terminal.attach())
            await daily._until(stream, b"ready\n")
            return terminal, stream

        yield list(await asyncio.gather(*(one(boxes[index % BOXES]) for index in range(number))))


async def crowd(counts: Counts, server: Separate, remote: RemoteProvider, measured: Measured) -> None:
    before, start = server.memory, time.perf_counter()
    async with opened(remote, counts.terminals) as terminals:
        measured.terminals["open"] = time.perf_counter() - start
        start = time.perf_counter()
        took = await asyncio.gather(*(daily._key(*pair)() for pair in terminals))
        measured.terminals |= {
            "count": float(len(took)),
            "all": time.perf_counter() - start,
            "key_p50": percentile(took, 50),
            "key_p99": percentile(took, 99),
            "server_memory": float(server.memory - before),
        }


async def measure(counts: Counts) -> Measured:
    async with workspace() as directory:
        server = await asyncio.to_thread(Separate, directory / "home", ("busy", "quiet"))
        remote = RemoteProvider(server.url, api_key=server.key)
        measured = Measured(facts=facts(directory))
        try:
            await beside(counts, remote, measured)
            (directory / "files").mkdir()
            await transfers(counts, directory / "files", server, remote, measured)
            await crowd(counts, server, remote, measured)
            keys = server.keys
            with Peak(server).watched() as peak:
                measured.samples |= await neighbours.measure(server.url, keys["busy"], keys["quiet"], counts.busy)
            measured.busy_memory = float(peak.most - peak.before)
        finally:
            remote.close()
            await asyncio.to_thread(server.stop)
    return measured


def report(measured: Measured, counts: Counts) -> list[str]:
    """Print the results; returns the goals that were missed."""
    for name, samples in measured.samples.items():
        found = Summary.of(samples)
        p50, p95, p99 = (seconds * 1000 for seconds in (found.p50, found.p95, found.p99))
        print(f"{name:12} p50 {p50:7.3f} ms  p95 {p95:7.3f}  p99 {p99:7.3f}  n {found.n}")
    times = {name: percentile(samples, 50) for name, samples in measured.samples.items()}
    execs, keys = times["remote exec"] / times["local exec"], times["remote key"] / times["pty key"]
    print(f"remote exec is {execs:.2f} × local exec (goal ≤ 2); key → echo is {keys:.1f} × a plain pty")
    copied = measured.transfers["cp"]["seconds"]
    for name in ("upload", "download"):
        way = measured.transfers[name]
        speed = counts.size / way["seconds"] / 1e6
        print(
            f"{name:12} {counts.size / 1e9:g} GB in {way['seconds']:.1f} s, {speed:.0f} MB/s,"
            f" {copied / way['seconds']:.2f} × cp;"
            f" server {way['memory'] / 1e6:.0f} MB, grown by {way['grown'] / 1e6:.1f} MB at most"
        )
    crowd = measured.terminals
    print(
        f"{crowd['count']:.0f} terminals open in {crowd['open']:.1f} s; server +{crowd['server_memory'] / 1e6:.0f} MB;"
        f" a key in each at once: {crowd['all'] * 1000:.0f} ms for all,"
        f" p50 {crowd['key_p50'] * 1000:.1f} ms, p99 {crowd['key_p99'] * 1000:.1f} ms"
    )
    alone, beside = times["list alone"], measured.samples["list beside"]
    p95, worst = percentile(beside, 95), max(beside)
    print(
        f"a list beside a user who asks for everything: p95 {p95 / alone:.1f} × its p50 alone (goal < {BESIDE}),"
        f" at worst {worst * 1000:.0f} ms (goal ≤ {SLOWEST * 1000:.0f});"
        f" server +{measured.busy_memory / 1e6:.0f} MB at most"
    )
    missed = [f"{name}: {texts[0]}" for name, texts in measured.errors.items()]
    if p95 >= BESIDE * alone:
        missed.append(f"p95 of a list beside a busy user is {p95 / alone:.1f} × a list alone, not below {BESIDE}")
    if worst > SLOWEST:
        missed.append(f"a list beside a busy user took {worst:.2f} s, above {SLOWEST:g}")
    if execs > 2:
        missed.append(f"remote exec is {execs:.2f} × local exec, above 2")
    for name in ("upload", "download"):
        grown = measured.transfers[name]["grown"]
        missed += [f"the server grew by {grown / 1e6:.0f} MB during the {name}"] if grown > FLAT else []
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take few samples: for a look, not for numbers")
    quick = parser.parse_args().quick
    counts = Counts(rounds=30, size=256 * 10**6, terminals=40, busy=10.0) if quick else Counts()
    try:
        measured = asyncio.run(measure(counts))
    except BlockingIOError:
        print("error: another benchmark is running", file=sys.stderr)
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "server-latest.json").write_text(json.dumps(vars(measured), indent=1))
    missed = report(measured, counts)
    for text in missed:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
