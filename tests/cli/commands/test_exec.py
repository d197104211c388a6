"""exec, kill and a first look at logs: commands in a sandbox that goes on."""

from __future__ import annotations

import signal
import subprocess

from tests.cli.conftest import Skerry


def test_exec_streams_and_exits_as_the_command_does(skerry: Skerry, box: str) -> None:
    done = skerry("exec", box, "--", "sh", "-c", "cat; echo err >&2; exit 9", stdin=b"in")
    assert (done.code, done.out, done.err) == (9, b"in", "err\n")


def test_exec_options_go_before_the_sandbox(skerry: Skerry, box: str) -> None:
    assert skerry("exec", "-w", "/tmp", "-e", "A=b", "--sudo", box, "sh", "-c", "pwd; echo $A").out == b"/tmp\nb\n"
    wrong = skerry("exec", box, "--sudo", "--", "true")
    assert (wrong.code, wrong.err.splitlines()[0]) == (125, "error: --sudo comes after the sandbox (INVALID_ARGUMENT)")


def test_exec_timeout_leaves_the_sandbox_usable(skerry: Skerry, box: str) -> None:
    assert skerry("exec", "--timeout", "0.3", box, "--", "sleep", "60").code == 124
    assert skerry("exec", box, "true").code == 0


def test_ctrl_c_kills_the_command_and_not_the_sandbox(skerry: Skerry, box: str) -> None:
    started = skerry.start("exec", box, "--", "sh", "-c", "echo ready; sleep 61", stdin=subprocess.DEVNULL)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=10)
    assert started.returncode == 130
    running = skerry("exec", box, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 61" not in running.text


def test_a_detached_process_outlives_its_command_and_keeps_its_output(skerry: Skerry, box: str) -> None:
    started = skerry("exec", "--detach", box, "--", "sh", "-c", "echo out; echo err >&2; exec sleep 60")
    assert started.code == 0
    process = started.text.strip()
    while "out" not in skerry("logs", box).text:
        pass
    logs = skerry("logs", box, process)
    assert (logs.code, logs.out, logs.err) == (0, b"out\n", "err\n")
    data = skerry("logs", box, process, "-o", "json").json
    assert (data["id"], data["stdout"], data["status"]) == (int(process), "out\n", "running")
    assert skerry("kill", box, process).text == f"{process}\n"
    followed = skerry("logs", "--follow", box, process)
    assert (followed.code, followed.out) == (0, b"out\n")


def test_kill_without_a_process_kills_all_of_them(skerry: Skerry, box: str) -> None:
    ids = [skerry("exec", "-d", box, "--", "sleep", "60").text.strip() for _ in range(2)]
    assert skerry("kill", "--signal", "TERM", box, "-o", "json").json == {"killed": [int(id) for id in ids]}
    for id in ids:
        skerry("logs", "--follow", box, id)
    assert skerry("kill", box).text == "nothing was running\n"
    assert {entry["signal"] for entry in skerry("logs", "--list", box, "-o", "json").json} == {signal.SIGTERM}


def test_kill_of_nothing_and_unknown_signals_are_errors(skerry: Skerry, box: str) -> None:
    done = skerry("kill", box, "4711")
    assert (done.code, "(PROCESS_NOT_FOUND)" in done.err) == (1, True)
    ended = skerry("exec", "-d", box, "--", "true").text.strip()
    skerry("logs", "--follow", box, ended)
    done = skerry("kill", box, ended)
    assert (done.code, done.text) == (0, "nothing was running\n")
    done = skerry("kill", "-s", "NOPE", box)
    assert (done.code, "(INVALID_ARGUMENT)\nhint: " in done.err) == (1, True)
    done = skerry("logs", box, "4711", "-o", "json")
    assert (done.code, done.error["code"]) == (1, "PROCESS_NOT_FOUND")
