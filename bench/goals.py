"""The goals: what must hold, what is aimed at, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import stats
from bench.results import Results

MODES = ("sequential", "staggered", "burst")
ENOUGH = 200
"""With fewer sandboxes alive, the fall of MemAvailable is mostly due to everything else on the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A goal and what was measured; `ok` is None where this run did not measure it."""

    subject: str
    """The row of the table it stands in."""
    text: str
    must: bool
    measured: float | None
    bound: float
    ok: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order of the table."""
    create, run, floor = (_p50(results, name) for name in ("skerry.create", "skerry.exec", "floor"))
    found = [
        *_ratios("skerry.create", _over(create, floor), "× floor", must=25, aim=15),
        *_ratios("skerry.create", _over(_p50(results, "docker.create"), create), "Docker", must=10, aim=15, least=True),
        *_ratios("skerry.exec", _over(run, floor), "× floor", must=3, aim=2),
        *_ratios("skerry.exec", _over(_p50(results, "docker.exec"), run), "Docker", must=15, aim=25, least=True),
    ]
    blocking = _p50(results, "skerry.exec blocking")
    overhead = None if blocking is None or run is None else (blocking - run) * 1000
    found.append(_at_most("skerry.exec blocking", "≤ 0.3 ms above async", overhead, 0.3))
    for way in ("upload", "download"):
        speed = _over(_p50(results, "cp 64 MB"), _p50(results, f"skerry.{way} 64 MB"))
        found.append(_at_least(f"skerry.{way} 64 MB", "≥ 0.5 × cp", speed, 0.5))
    key = _over(_p50(results, "skerry.key"), _p50(results, "pty.key"))
    found.append(_at_most("skerry.key", "≤ 5 × a local pty", key, 5))
    for way in ("tree upload", "tree download"):
        speed = _over(_p50(results, "tree.cp"), _p50(results, f"skerry.{way}"))
        found.append(_at_least(f"skerry.{way}", "≥ 0.5 × cp", speed, 0.5))
    return found + _keeping(results, floor, create) + _many(results)


def failed(found: Sequence[Verdict]) -> list[Verdict]:
    """The goals that must hold and were missed."""
    return [verdict for verdict in found if verdict.must and verdict.ok is False]


def _keeping(results: Results, floor: float | None, create: float | None) -> list[Verdict]:
    small, large = (_p50(results, f"skerry.snapshot {size}") for size in ("100 MB", "1 GB"))
    clone, fork, copy = (_p50(results, name) for name in ("skerry.clone", "skerry.fork", "cp -a of the tree"))
    above = None if clone is None or create is None else clone - create
    forks, answered = results.facts.get("forks"), results.facts.get("forks_answered")
    copies = None if copy is None or not isinstance(forks, int) else copy * forks
    share = answered / forks if isinstance(forks, int) and isinstance(answered, int) else None
    return [
        _at_most("skerry.snapshot 100 MB", "≤ 15 × floor", _over(small, floor), 15, must=True),
        _at_most("skerry.snapshot 1 GB", "≤ 2 × that of 100 MB", _over(large, small), 2, must=True),
        _at_most("skerry.clone", "≤ create + 20 × floor", _over(above, floor), 20, must=True),
        _at_least("skerry.fork", "all answered", share, 1.0, must=True),
        _at_least("skerry.fork", "≤ 1/10 of as many copies", _over(copies, fork), 10, must=True),
    ]


def _many(results: Results) -> list[Verdict]:
    crowds = results.at_once.get("skerry")
    answered = None if not crowds else sum(crowd.answered for crowd in crowds) / sum(crowd.asked for crowd in crowds)
    found = [_at_least("at once", "all answered", answered, 1.0, must=True)]
    found.append(_at_least("at once", "≤ 1/20 of Docker", _crowd_ratio(results), 20))
    alive = results.alive.get("skerry")
    share = None if alive is None else len(alive.seconds) / alive.asked
    each = None if alive is None or alive.up < ENOUGH or alive.memory <= 0 else alive.each / 1e6
    found.append(_at_least("alive", "all answered twice", share, 1.0, must=True))
    found.append(_at_most("alive", "≤ 1.5 MB each", each, 1.5, must=True))
    found.append(_at_most("alive", "≤ 1 MB each", each, 1.0))
    left = None if results.left is None else float(len(results.left))
    found.append(_at_most("left", "nothing left", left, 0, must=True))
    for mode in MODES:
        crowd = results.computesdk.get("skerry", {}).get(mode)
        score = None if crowd is None else stats.score(crowd.seconds, crowd.asked)
        found.append(_at_least(mode, "≥ 99.5", score, 99.5))
    return found


def _ratios(
    subject: str, measured: float | None, of: str, *, must: float, aim: float, least: bool = False
) -> list[Verdict]:
    """A bound that must hold and a tighter one to aim at; with `least` both mean 1/bound of something slower."""
    judge = _at_least if least else _at_most
    text = "≤ 1/{:g} of {}" if least else "≤ {:g} {}"
    return [
        judge(subject, text.format(must, of), measured, must, must=True),
        judge(subject, text.format(aim, of), measured, aim),
    ]


def _at_most(subject: str, text: str, measured: float | None, bound: float, *, must: bool = False) -> Verdict:
    ok = None if measured is None else measured <= bound
    return Verdict(subject=subject, text=text, must=must, measured=measured, bound=bound, ok=ok)


def _at_least(subject: str, text: str, measured: float | None, bound: float, *, must: bool = False) -> Verdict:
    ok = None if measured is None else measured >= bound
    return Verdict(subject=subject, text=text, must=must, measured=measured, bound=bound, ok=ok)


def _p50(results: Results, name: str) -> float | None:
    samples = results.samples.get(name)
    return stats.percentile(samples, 50) if samples else None


def _crowd_ratio(results: Results) -> float | None:
    """Docker's wall clock over ours, if both made as many boxes and all of Docker's answered."""
    ours, docker = results.at_once.get("skerry"), results.at_once.get("docker")
    if not ours or not docker or ours[0].asked != docker[0].asked or docker[0].errors:
        return None
    return _over(*(stats.percentile([crowd.wall for crowd in crowds], 50) for crowds in (docker, ours)))


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below
