"""Measures, prints and saves the results; exits with 1 when a goal that must hold is missed."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import crowd, daily, goals, keeping, report
from bench.box import Backend
from bench.interleave import interleave
from bench.leftovers import leftovers
from bench.machine import facts
from bench.ops import blocking_ops, box_ops, copy_op, make_files
from bench.results import Results
from bench.skerry_ops import SkerryBackend
from bench.workspace import workspace

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How often each thing is done."""

    rounds: int
    docker_rounds: int
    many: int
    docker_many: int
    bursts: int
    alive: int
    docker_alive: int
    trees: int
    tree_files: int
    snapshots: int
    forks: int


FULL = Counts(
    rounds=60,
    docker_rounds=30,
    many=100,
    docker_many=100,
    bursts=3,
    alive=1000,
    docker_alive=50,
    trees=1,
    tree_files=50_000,
    snapshots=10,
    forks=100,
)
QUICK = Counts(
    rounds=5,
    docker_rounds=3,
    many=20,
    docker_many=10,
    bursts=1,
    alive=50,
    docker_alive=5,
    trees=1,
    tree_files=2_000,
    snapshots=2,
    forks=20,
)


def parse(arguments: list[str]) -> tuple[Counts, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure Skerry on this machine.")
    parser.add_argument("--docker", action="store_true", help="measure Docker too, through a separate daemon")
    parser.add_argument("--keeping", action="store_true", help="measure only snapshots, clones and forks")
    parser.add_argument("--quick", action="store_true", help="take few samples: for a look, not for numbers")
    for name, text in {
        "rounds": "rounds of the operations that run one at a time",
        "docker-rounds": "how many of these rounds include Docker",
        "many": "how many sandboxes to create at once, staggered, and one after another",
        "docker-many": "the same for Docker",
        "bursts": "how often to create that many at once",
        "alive": "how many to keep alive at the same time; 0 for none",
        "docker-alive": "the same for Docker",
        "trees": "how often to copy a whole tree each way; 0 for never",
        "tree-files": "how many files the tree has",
        "snapshots": "how many snapshots of each size, and how many clones, to make; 0 for none",
        "forks": "how many copies one fork makes",
    }.items():
        default = f"{getattr(FULL, name.replace('-', '_'))}, with --quick {getattr(QUICK, name.replace('-', '_'))}"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} ({default})")
    given = parser.parse_args(arguments)
    base = QUICK if given.quick else FULL
    values = {name: base_value(base, given, name) for name in Counts.__slots__}
    if min(values.values()) < 0 or not values["rounds"] or not values["many"] or not values["bursts"]:
        parser.error("a count is too small")
    values["docker_rounds"] = min(values["docker_rounds"], values["rounds"])
    return Counts(**values), given


def base_value(base: Counts, given: argparse.Namespace, name: str) -> int:
    chosen = getattr(given, name)
    return int(getattr(base, name) if chosen is None else chosen)


@contextmanager
def stage(progress: Progress, text: str, total: int) -> Iterator[Callable[[], None]]:
    """One line of progress; the value advances it."""
    task = progress.add_task(text, total=total)
    yield lambda: progress.advance(task)
    progress.update(task, completed=total)


async def measure(counts: Counts, directory: Path, skerry: SkerryBackend, results: Results, *, docker: bool) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=console))
        backends: list[tuple[Backend, int, int, int]] = [(skerry, counts.rounds, counts.many, counts.alive)]
        if docker:
            with stage(progress, "start dockerd", 1):
                other = await enter_docker(stack, directory, results)
            backends.append((other, counts.docker_rounds, counts.docker_many, counts.docker_alive))
        await one_at_a_time(backends, counts.rounds, directory, skerry, results, progress)
        await many(backends, counts.bursts, results, progress)
        for backend, _, _, n in backends:
            if n:
                with stage(progress, f"{n} alive: {backend.name}", n) as advance:
                    results.alive[backend.name] = await crowd.alive(backend, n, advance)
        # What writes most comes last: many disks are slow for minutes after it.
        await keep(counts, directory, skerry, results, progress)
        await daily_life(counts, directory / "daily", skerry, results, progress)


async def enter_docker(stack: AsyncExitStack, directory: Path, results: Results) -> Backend:
    """A separate daemon, which runs until `stack` ends."""
    from bench import docker_image, docker_ops, dockerd

    await asyncio.to_thread(dockerd.install)
    client = await stack.enter_async_context(dockerd.daemon(directory / "docker"))
    await docker_image.import_image(client, directory / "image")
    results.facts["docker"] = (await client.version())["Version"]
    return docker_ops.DockerBackend(client)


async def one_at_a_time(
    backends: list[tuple[Backend, int, int, int]],
    rounds: int,
    directory: Path,
    skerry: SkerryBackend,
    results: Results,
    progress: Progress,
) -> None:
    files = make_files(directory / "files")
    async with AsyncExitStack() as stack:
        ops = [copy_op(files, rounds)]
        for backend, n, _, _ in backends:
            ops += box_ops(backend, await stack.enter_async_context(backend.box()), files, n)
        ops += await blocking_ops(stack, skerry, rounds)
        with stage(progress, "one at a time", rounds) as advance:
            await interleave(ops, rounds, results, advance)


async def daily_life(
    counts: Counts, directory: Path, skerry: SkerryBackend, results: Results, progress: Progress
) -> None:
    with stage(progress, f"make a tree of {counts.tree_files:,} files", 1):
        await asyncio.to_thread(daily.make_tree, directory, counts.tree_files)
    results.facts["tree_files"] = counts.tree_files
    async with AsyncExitStack() as stack:
        ops = await daily.daily_ops(stack, skerry, directory, counts.rounds, counts.trees)
        with stage(progress, "daily life", counts.rounds) as advance:
            await interleave(ops, counts.rounds, results, advance)


async def keep(counts: Counts, directory: Path, skerry: SkerryBackend, results: Results, progress: Progress) -> None:
    if counts.snapshots == 0:
        return
    for label in keeping.SIZES:
        with stage(progress, f"snapshots of {label}", counts.snapshots + 1) as advance:
            await keeping.snapshots(skerry, label, counts.snapshots, results, advance)
    with stage(progress, "clones and a fork", counts.snapshots + 2) as advance:
        await keeping.copies(skerry, counts.snapshots, counts.forks, directory, results, advance)


async def only_keep(counts: Counts, directory: Path, skerry: SkerryBackend, results: Results) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        await keep(counts, directory, skerry, results, progress)


async def many(
    backends: list[tuple[Backend, int, int, int]], bursts: int, results: Results, progress: Progress
) -> None:
    for number in range(bursts):
        for backend, _, n, _ in backends:
            if n and (number == 0 or backend.name == "skerry"):  # once is enough for Docker, which takes long
                with stage(progress, f"{n} at once: {backend.name}", 1):
                    results.at_once.setdefault(backend.name, []).append(await crowd.together(backend, n))
    for backend, _, n, _ in backends:
        if n:
            with stage(progress, f"{n} one after another: {backend.name}", 1):
                in_turn = await crowd.sequential(backend, n)
            with stage(progress, f"{n} staggered: {backend.name}", 1):
                staggered = await crowd.together(backend, n, gap=crowd.STAGGER)
            burst = results.at_once[backend.name][0]
            results.computesdk[backend.name] = {"sequential": in_turn, "staggered": staggered, "burst": burst}


async def run(counts: Counts, *, docker: bool, only_keeping: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with workspace() as directory:
        skerry = SkerryBackend()
        results = Results(facts=facts(directory))
        if only_keeping:
            await only_keep(counts, directory, skerry, results)
        else:
            await measure(counts, directory, skerry, results, docker=docker)
        results.facts["load_after"] = os.getloadavg()[0]
        results.left = leftovers(directory / "home", skerry.ids)
    found = goals.verdicts(results)
    path = report.save(results, found, RESULTS)
    console = Console(width=None if sys.stdout.isatty() else 160)
    report.show(results, found, console)
    known = ", ".join(f"{name} {value}" for name, value in results.facts.items())
    console.print(f"{known}\nraw samples: {path}", highlight=False, markup=False, soft_wrap=True)
    for verdict in goals.failed(found):
        console.print(f"[red]missed: {verdict.subject}: {verdict.text}, measured {verdict.measured:.3g}[/red]")
    return 1 if goals.failed(found) or results.errors else 0


def main() -> int:
    counts, given = parse(sys.argv[1:])
    if os.geteuid() != 0:
        print("error: local sandboxes require root", file=sys.stderr)
        return 2
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each of a thousand sandboxes
    try:
        return asyncio.run(run(counts, docker=given.docker, only_keeping=given.keeping))
    except BlockingIOError:
        print("error: another benchmark is running", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything was removed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
