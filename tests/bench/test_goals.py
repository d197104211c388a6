"""Which goals a run reached, from samples made up for it."""

from __future__ import annotations

import itertools

from bench import goals
from bench.interleave import due
from bench.results import Alive, Crowd, Results


def test_an_op_has_as_many_turns_as_wanted_spread_over_the_rounds() -> None:
    turns = [number for number in range(60) if due(number, 60, 20)]
    assert len(turns) == 20
    assert {later - earlier for earlier, later in itertools.pairwise(turns)} == {3}
    assert not any(due(number, 60, 0) for number in range(60))
    assert all(due(number, 60, 60) for number in range(60))


def test_what_was_not_measured_fails_nothing() -> None:
    found = goals.verdicts(Results(facts={}))
    assert {verdict.ok for verdict in found} == {None}
    assert goals.failed(found) == []


def test_a_good_run_reaches_every_goal() -> None:
    found = goals.verdicts(_run(create=0.010, run=0.001))
    assert {verdict.ok for verdict in found} == {True}


def test_missing_an_aim_fails_nothing_but_missing_a_must_does() -> None:
    aims = goals.verdicts(_run(create=0.020, run=0.001))
    assert [verdict.text for verdict in aims if not verdict.ok] == ["≤ 15 × floor", "≤ 1/15 of Docker"]
    assert goals.failed(aims) == []
    musts = goals.failed(goals.verdicts(_run(create=0.030, run=0.004)))
    assert [verdict.text for verdict in musts] == [
        "≤ 25 × floor",
        "≤ 1/10 of Docker",
        "≤ 3 × floor",
        "≤ 1/15 of Docker",
    ]


def test_slow_snapshots_and_copies_and_a_lost_fork_fail() -> None:
    results = _run(create=0.010, run=0.001)
    results.samples |= {
        "skerry.snapshot 100 MB": [0.016],
        "skerry.snapshot 1 GB": [0.033],
        "skerry.clone": [0.031],
        "skerry.fork": [5.1],
    }
    results.facts["forks_answered"] = 99
    missed = [(verdict.subject, verdict.text) for verdict in goals.failed(goals.verdicts(results))]
    assert missed == [
        ("skerry.snapshot 100 MB", "≤ 15 × floor"),
        ("skerry.snapshot 1 GB", "≤ 2 × that of 100 MB"),
        ("skerry.clone", "≤ create + 20 × floor"),
        ("skerry.fork", "all answered"),
        ("skerry.fork", "≤ 1/10 of as many copies"),
    ]


def test_a_lost_sandbox_a_large_one_and_a_leak_fail() -> None:
    results = _run(create=0.010, run=0.001)
    results.at_once["skerry"][0].seconds.pop()
    results.alive["skerry"].memory = 1_600_000_000
    results.left = ["cgroup"]
    missed = [verdict.text for verdict in goals.failed(goals.verdicts(results))]
    assert missed == ["all answered", "≤ 1.5 MB each", "nothing left"]


def _run(*, create: float, run: float) -> Results:
    results = Results(facts={}, left=[])
    results.samples |= {
        "floor": [0.001],
        "cp 64 MB": [0.04],
        "skerry.create": [create],
        "skerry.exec": [run],
        "skerry.exec blocking": [run + 0.0001],
        "skerry.upload 64 MB": [0.05],
        "skerry.download 64 MB": [0.05],
        "docker.create": [0.25],
        "docker.exec": [0.04],
        "pty.key": [0.0001],
        "skerry.key": [0.0004],
        "tree.cp": [2.0],
        "skerry.tree upload": [3.0],
        "skerry.tree download": [3.0],
        "skerry.snapshot 100 MB": [0.010],
        "skerry.snapshot 1 GB": [0.012],
        "skerry.clone": [create + 0.015],
        "skerry.fork": [2.0],
        "cp -a of the tree": [0.5],
    }
    results.facts |= {"forks": 100, "forks_answered": 100}
    results.at_once = {
        "skerry": [Crowd(asked=2, seconds=[0.01, 0.01], wall=1)],
        "docker": [Crowd(asked=2, seconds=[0.5, 0.5], wall=30)],
    }
    results.computesdk["skerry"] = {mode: Crowd(asked=1, seconds=[0.01]) for mode in goals.MODES}
    results.alive["skerry"] = Alive(asked=1000, up=1000, seconds=[0.001] * 1000, memory=700_000_000)
    return results
