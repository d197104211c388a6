"""usage and events: once, and going on."""

from __future__ import annotations

import json
import signal

from tests.cli.conftest import Skerry
from tests.cli.pty import Terminal


def test_usage_shows_what_is_used_and_the_limits(skerry: Skerry) -> None:
    box = skerry("create", "--memory", "256MB", "--pids", "77").text.strip()
    try:
        text = skerry("usage", box).text
        data = skerry("usage", box, "-o", "json").json
    finally:
        skerry("rm", box)
    assert [line.split()[0] for line in text.splitlines()] == ["cpu", "memory", "disk", "network", "processes"]
    assert " of 256 MB\n" in text
    assert (data["memory_total"], data["pids_limit"]) == (256_000_000, 77)
    assert data["memory_used"] > 0


def test_cpu_is_that_of_now_and_not_of_the_sandbox_s_life(skerry: Skerry, box: str) -> None:
    assert skerry("exec", "--timeout", "1.5", box, "--", "sh", "-c", "while :; do :; done").code == 124
    assert skerry("usage", box, "-o", "json").json["cpu_percent"] < 20
    skerry("exec", "-d", box, "--", "sh", "-c", "while :; do :; done")
    assert skerry("usage", box, "-o", "json").json["cpu_percent"] > 2  # however busy the machine is


def test_usage_watch_gives_an_object_a_line_until_the_sandbox_ends(skerry: Skerry, box: str) -> None:
    with skerry.start("usage", "--watch", "--interval", "0.1", box, "-o", "json") as watching:
        assert watching.stdout is not None and watching.stderr is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        skerry("rm", box)
        watching.stdout.read()
        assert watching.stderr.read().decode() == f"{box} has ended\n"
    assert watching.returncode == 0
    assert looks[0]["time"] < looks[1]["time"] < looks[2]["time"]


def test_usage_watch_on_a_terminal_shows_the_newest_look_in_place(skerry: Skerry, box: str) -> None:
    with Terminal("usage", "-w", "--interval", "0.1", box) as terminal:
        terminal.read_until(b"\033[5A\033[J")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130


def test_events_are_listed_and_go_on_from_a_cursor(skerry: Skerry, box: str) -> None:
    listed = skerry("events", box, "-o", "json").json
    assert [event["type"] for event in listed][:2] == ["created", "ready"]
    cursor = listed[0]["cursor"]
    later = skerry("events", "--since", str(cursor), box, "-o", "json").json
    assert later == listed[1:]
    assert skerry("events", box).text.splitlines()[0].split() == ["CURSOR", "TIME", "EVENT", "DETAILS"]


def test_events_follow_ends_with_the_sandbox(skerry: Skerry, box: str) -> None:
    with skerry.start("events", "-f", box, "-o", "json") as following:
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        skerry("rm", box)
        rest = [json.loads(line) for line in following.stdout]
    assert following.returncode == 0
    assert (first["type"], rest[-1]["type"]) == ("created", "destroyed")


def test_a_sandbox_that_is_not_there_is_an_error(skerry: Skerry) -> None:
    for command in ("usage", "events"):
        done = skerry(command, "no-such-box", "-o", "json")
        assert (done.code, done.error["code"]) == (1, "SANDBOX_NOT_FOUND")
