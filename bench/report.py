"""The table for people, and the raw samples as JSON for everything else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import stats
from bench.goals import MODES, Verdict
from bench.results import Crowd, Results

TITLES = {
    "create": "create → first command",
    "create blocking": "  the same, blocking API",
    "exec": "command in a running sandbox",
    "exec blocking": "  the same, blocking API",
    "first byte": "spawn → first byte",
    "upload 1 kB": "upload 1 kB",
    "download 1 kB": "download 1 kB",
    "upload 64 MB": "upload 64 MB",
    "download 64 MB": "download 64 MB",
}


BESIDE = {
    "key": ("key → echo of a program in a terminal", "pty.key", "a local pty"),
    "flood": ("32 MB through a terminal", "pty.flood", "a local pty"),
    "watch": ("change → event of a watch", None, ""),
    "tree upload": ("{files} files and 5 GB sparse, up", "tree.cp", "cp -a"),
    "tree download": ("{files} files and 5 GB sparse, down", "tree.cp", "cp -a"),
}
"""Operations with a separate baseline: title, the baseline's op, and the baseline's name."""


KEEPING = {
    "snapshot 100 MB": "snapshot of a running sandbox, 100 MB in 5,000 files",
    "snapshot 100 MB, stands still": "  time that it stands still",
    "snapshot 100 MB dirty": "  right after writing them",
    "snapshot 100 MB dirty, stands still": "  time that it stands still",
    "snapshot 1 GB": "snapshot of a running sandbox, 1 GB in 5,000 files",
    "snapshot 1 GB, stands still": "  time that it stands still",
    "snapshot 1 GB dirty": "  right after writing them",
    "snapshot 1 GB dirty, stands still": "  time that it stands still",
    "clone": "clone of 100 MB → first command",
    "fork": "fork({forks}) of 100 MB, all answering",
}


def save(results: Results, verdicts: Sequence[Verdict], directory: Path) -> Path:
    """Write everything as JSON under a new name, and again as latest.json."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    text = json.dumps({**asdict(results), "goals": [asdict(verdict) for verdict in verdicts]}, indent=1)
    for target in (path, directory / "latest.json"):
        fresh = target.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, target)
    return path


def show(results: Results, verdicts: Sequence[Verdict], console: Console) -> None:
    console.print(_ops(results, verdicts))
    if any(f"skerry.{name}" in results.samples for name in BESIDE):
        console.print(_daily(results, verdicts))
    if any(f"skerry.{name}" in results.samples for name in KEEPING):
        console.print(_keeping(results, verdicts))
    if results.at_once or results.alive:
        console.print(_crowds(results, verdicts))
    for what, errors in results.errors.items():
        console.print(f"[red]{what}: {len(errors)} failed, first: {errors[0]}[/red]", highlight=False)
    for crowd in _all_crowds(results):
        if crowd.errors:
            console.print(f"[red]{len(crowd.errors)} failed, first: {crowd.errors[0]}[/red]", highlight=False)
    for left in (results.left or [])[:20]:
        console.print(f"[red]left behind: {left}[/red]", highlight=False)


def _all_crowds(results: Results) -> list[Crowd]:
    once = [crowd for crowds in results.at_once.values() for crowd in crowds]
    # the burst is the first of those at once
    return once + [by[mode] for by in results.computesdk.values() for mode in by if mode != "burst"]


def _ops(results: Results, verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="One at a time, interleaved; milliseconds", title_justify="left")
    table.add_column("")
    for name in ("p50", "p95", "min", "n", "× floor", "Docker p50", "Docker /"):
        table.add_column(name, justify="right")
    table.add_column("goals")
    for name in ("floor", "cp 64 MB"):
        if samples := results.samples.get(name):
            title = "floor: posix_spawn /bin/true" if name == "floor" else "cp 64 MB on the same disk"
            table.add_row(title, *_numbers(samples, results), "", "", "")
    for name, title in TITLES.items():
        samples = results.samples.get(f"skerry.{name}", [])
        docker = results.samples.get(f"docker.{name}", [])
        if not samples:
            if results.errors.get(f"skerry.{name}"):
                table.add_row(title, "[red]failed[/red]", *[""] * 7)
            continue
        beside, ratio = "", ""
        if docker:
            other = stats.percentile(docker, 50)
            beside, ratio = _ms(other), f"{other / stats.percentile(samples, 50):.1f}"
        table.add_row(title, *_numbers(samples, results), beside, ratio, _goals(f"skerry.{name}", verdicts))
    return table


def _daily(results: Results, verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Everyday operations, interleaved; milliseconds", title_justify="left")
    for name in ("", "p50", "p95", "n", "beside", "p50", "×", "tar | tar", "×", "goals"):
        table.add_column(name, justify="left" if name in ("", "beside", "goals") else "right")
    for name, (title, baseline, what) in BESIDE.items():
        samples = results.samples.get(f"skerry.{name}", [])
        if not samples:
            continue
        summary = stats.Summary.of(samples)
        cells = _beside(summary.p50, results.samples.get(baseline or "", []))
        tar = _beside(summary.p50, results.samples.get("tree.tar", []) if name.startswith("tree") else [])
        mine = (_ms(summary.p50), _ms(summary.p95), str(summary.n))
        title = title.format(files=f"{results.facts.get('tree_files', 0):,}")
        table.add_row(title, *mine, what, *cells, *tar, _goals(f"skerry.{name}", verdicts))
    return table


def _keeping(results: Results, verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Snapshots and copies; milliseconds", title_justify="left")
    table.add_column("")
    for name in ("p50", "p95", "min", "n", "× floor"):
        table.add_column(name, justify="right")
    table.add_column("goals")
    for name, title in KEEPING.items():
        if samples := results.samples.get(f"skerry.{name}"):
            title = title.format(forks=results.facts.get("forks", 0))
            table.add_row(title, *_numbers(samples, results), _goals(f"skerry.{name}", verdicts))
    if copies := results.samples.get("cp -a of the tree"):
        scaled = [each * int(results.facts["forks"]) for each in copies]
        title = f"{results.facts['forks']} copies by cp -a, scaled from {len(copies)}"
        table.add_row(title, *_numbers(scaled, results), "")
    return table


def _beside(p50: float, baseline: Sequence[float]) -> tuple[str, str]:
    if not baseline:
        return "", ""
    other = stats.percentile(baseline, 50)
    return _ms(other), f"{p50 / other:.2f}"


def _crowds(results: Results, verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Many", title_justify="left")
    table.add_column("")
    for name in ("Skerry", "Docker"):
        table.add_column(name, justify="right")
    table.add_column("goals")
    both = ("skerry", "docker")
    if results.at_once:
        asked = results.at_once["skerry"][0].asked if "skerry" in results.at_once else 0
        cells = [_at_once(results.at_once.get(name, []), asked) for name in both]
        table.add_row(f"{asked} at once, all answered", *cells, _goals("at once", verdicts))
    if results.alive:
        alive = results.alive.get("skerry")
        cells = [_alive(results, name, alive.asked if alive else 0) for name in both]
        title = f"{alive.asked if alive else 0} alive, each answers again"
        table.add_row(title, *cells, _goals("alive", verdicts))
    for mode in MODES:
        found = [results.computesdk.get(name, {}).get(mode) for name in both]
        if any(found):
            asked = found[0].asked if found[0] else 0
            cells = [_scored(crowd, asked) for crowd in found]
            table.add_row(f"ComputeSDK score, {mode} {asked}", *cells, _goals(mode, verdicts))
    if results.left is not None:
        table.add_row("left on the host", str(len(results.left)), "", _goals("left", verdicts))
    return table


def _at_once(crowds: Sequence[Crowd], asked: int) -> str:
    if not crowds:
        return ""
    wall = stats.percentile([crowd.wall for crowd in crowds], 50)
    answered, all_asked = sum(crowd.answered for crowd in crowds), sum(crowd.asked for crowd in crowds)
    return f"{wall:.2f} s, {answered}/{all_asked}" + ("" if crowds[0].asked == asked else f" ({crowds[0].asked} only)")


def _alive(results: Results, name: str, asked: int) -> str:
    alive = results.alive.get(name)
    if alive is None:
        return ""
    answer = f", answer {_ms(stats.percentile(alive.seconds, 50))} ms" if alive.seconds else ""
    only = "" if alive.asked == asked else f" ({alive.asked} only)"
    own = f", {alive.client_memory / max(1, alive.up) / 1e6:.2f} of it the client"
    memory = f"{alive.each / 1e6:.2f} MB each{own}" if alive.memory > 0 else "memory below the noise"
    return f"{len(alive.seconds)}/{alive.asked}, {memory}{answer}{only}"


def _scored(crowd: Crowd | None, asked: int) -> str:
    if crowd is None:
        return ""
    only = "" if crowd.asked == asked else f" ({crowd.asked} only)"
    median = f", median {_ms(stats.percentile(crowd.seconds, 50))} ms" if crowd.seconds else ""
    return f"{stats.score(crowd.seconds, crowd.asked):.2f}{median}{only}"


def _numbers(samples: Sequence[float], results: Results) -> tuple[str, ...]:
    summary = stats.Summary.of(samples)
    floor = results.samples.get("floor")
    ratio = f"{summary.p50 / stats.percentile(floor, 50):.1f}" if floor else ""
    return _ms(summary.p50), _ms(summary.p95), _ms(summary.min), str(summary.n), ratio


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}" if seconds < 1 else f"{seconds * 1000:.0f}"


def _goals(subject: str, verdicts: Sequence[Verdict]) -> str:
    """What must hold, then what is aimed at, each with its mark; leaves out what was not measured."""
    cells = []
    for verdict in sorted((v for v in verdicts if v.subject == subject), key=lambda v: not v.must):
        if verdict.ok is None:
            continue
        style = "green" if verdict.ok else ("bold red" if verdict.must else "yellow")
        word = "must" if verdict.must else "aim"
        cells.append(f"[{style}]{'✓' if verdict.ok else '✗'} {word} {verdict.text}[/{style}]")
    return "\n".join(cells)
