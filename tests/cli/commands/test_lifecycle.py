"""stop, start, restart, pause, resume, recover, reset: several at once, and what they say when one cannot be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.providers.local.sandbox import record
from tests.cli.conftest import Skerry


@pytest.fixture
def pair(skerry: Skerry) -> Iterator[list[str]]:
    """Two sandboxes."""
    made = [skerry("create").text.strip() for _ in range(2)]
    yield made
    skerry("rm", *made)


def state(skerry: Skerry, sandbox: str) -> str:
    return str(skerry("info", sandbox, "-o", "json").json["state"])


def test_several_are_stopped_and_started_at_once(skerry: Skerry, pair: list[str]) -> None:
    assert skerry("stop", *pair).text.split() == pair
    rows = [line.split() for line in skerry("ps").text.splitlines()]
    assert [row[2] for row in rows if row[0] in pair] == ["stopped", "stopped"]
    started = skerry("start", *pair, "-o", "json").json
    assert [(info["id"], info["state"]) for info in started] == [(one, "running") for one in pair]


def test_one_that_cannot_be_does_not_keep_the_others_from_it(skerry: Skerry, pair: list[str]) -> None:
    done = skerry("stop", pair[0], "no-such-box", pair[1])
    assert (done.code, done.text.split()) == (1, pair)
    assert "(SANDBOX_NOT_FOUND)" in done.err
    done = skerry("pause", pair[0], "-o", "json")
    assert (done.code, done.json, done.error["code"]) == (1, [], "CONFLICT")
    assert state(skerry, pair[0]) == "stopped"


def test_exec_starts_a_stopped_one_unless_told_not_to(skerry: Skerry, box: str) -> None:
    assert skerry("exec", box, "--", "sh", "-c", "echo data > kept").code == 0
    assert skerry("stop", box).code == 0
    done = skerry("exec", "--no-start", box, "--", "cat", "kept")
    assert (done.code, "(SANDBOX_STOPPED)" in done.err) == (125, True)
    for looking in (("logs", box), ("kill", box), ("usage", box)):
        assert "(SANDBOX_STOPPED)" in skerry(*looking).err
    assert state(skerry, box) == "stopped"
    assert skerry("exec", box, "--", "cat", "kept").text == "data\n"
    assert state(skerry, box) == "running"


def test_restart_changes_variables_and_limits(skerry: Skerry, box: str) -> None:
    assert skerry("restart", "--env", "MODE=debug", "--memory", "300MB", "--pids", "99", box).text.strip() == box
    assert skerry("exec", box, "--", "printenv", "MODE").text == "debug\n"
    assert skerry("info", box, "-o", "json").json["resources"]["memory"] == 300_000_000
    done = skerry("restart", "--memory", "900TB", box)
    assert (done.code, "(QUOTA_EXCEEDED)" in done.err) == (1, True)
    done = skerry("restart", "--template", "no-such-template", box)
    assert (done.code, "(TEMPLATE_NOT_FOUND)" in done.err) == (1, True)


def test_pause_and_resume(skerry: Skerry, box: str) -> None:
    assert skerry("pause", box).code == 0
    assert state(skerry, box) == "paused"
    assert skerry("exec", "--no-start", box, "true").code == 125
    assert skerry("resume", box).code == 0
    assert skerry("exec", "--no-start", box, "true").code == 0


def test_reset_and_recover(skerry: Skerry, box: str, skerry_home: Path) -> None:
    skerry("exec", box, "--", "touch", "kept")
    assert skerry("reset", box).code == 0
    assert skerry("exec", box, "--", "ls").text == "kept\n"
    assert skerry("reset", "--hard", box).code == 0
    assert skerry("exec", box, "--", "ls").text == ""
    assert skerry("recover", box).code == 1
    init = record.read(skerry_home / "sandboxes" / box).init
    assert init is not None
    init.kill(30)
    assert skerry("recover", box).text.strip() == box
    assert state(skerry, box) == "running"


def test_rm_gracefully_lets_processes_end(skerry: Skerry, tmp_path: Path) -> None:
    box = skerry("create").text.strip()
    script = "trap 'sleep 1; exit' TERM; while :; do sleep 0.05; done"
    skerry("exec", "--detach", box, "--", "sh", "-c", script)
    began = time.monotonic()
    done = skerry("rm", "--graceful", "--timeout", "20", box)
    assert (done.code, done.text.strip()) == (0, box)
    assert 0.9 < time.monotonic() - began < 20
    assert box not in skerry.ids()


def test_create_takes_limits_of_inactivity(skerry: Skerry) -> None:
    box = skerry("create", "--auto-stop", "0.3").text.strip()
    try:
        deadline = time.monotonic() + 30
        while state(skerry, box) != "stopped" and time.monotonic() < deadline:
            pass
        assert "stopped (nothing was done in it for 0.3 s)" in skerry("info", box).text
    finally:
        skerry("rm", box)
    assert skerry("create", "--auto-stop", "0").code == 1
    gone = skerry("create", "--auto-delete", "0.3").text.strip()
    deadline = time.monotonic() + 30
    while gone in skerry.listed() and time.monotonic() < deadline:
        pass
    assert not (Path(os.environ["SKERRY_HOME"]) / "sandboxes" / gone).exists()
