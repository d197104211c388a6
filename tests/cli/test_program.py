"""The program as a whole: help, version, wrong usage, doctor, bench, and how little of it is loaded when."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from skerry.cli.program import app
from skerry.cli.table import COMMANDS as COMMANDS_TOLD
from skerry.cli.table import GROUPS as GROUPS_TOLD
from skerry.cli.table import MEANT, MEANT_ALONE
from tests.cli.conftest import Skerry

GROUPS = {
    "Sandboxes": ["create", "ps", "info", "rm"],
    "Lifecycle": ["stop", "start", "restart", "pause", "resume", "recover", "reset"],
    "Running": ["run", "exec", "sh", "attach", "logs", "kill"],
    "Files": ["ls", "cat", "cp", "edit", "watch"],
    "Keeping": ["clone", "fork", "export", "import", "archive", "snapshot", "template", "volume"],
    "Network": ["port"],
    "Looking": ["usage", "events"],
    "Server": ["up", "status", "down", "backup", "login", "logout", "whoami", "config", "user", "key", "project"],
    "Machine": ["gc", "doctor", "audit", "bench", "conformance", "completion", "help", "storage"],
}
NESTED = {
    "template": ["build", "ls", "show", "rm"],
    "snapshot": ["create", "ls", "restore", "rm", "tree"],
    "volume": ["create", "ls", "show", "rm"],
    "storage": ["show", "unlock", "unmount"],
    "config": ["show"],
    "user": ["ls", "create", "link", "password", "disable", "rm"],
    "key": ["ls", "create", "revoke"],
    "project": ["ls", "create", "rm", "members", "share", "unshare"],
}
COMMANDS = [command for group in GROUPS.values() for command in group]
SINGLE = [command for command in COMMANDS if command not in NESTED]
SINGLE += [f"{group} {command}" for group, commands in NESTED.items() for command in commands]
NO_DATA = {"cat", "edit", "sh", "attach", "completion", "help"}


def test_help_lists_every_command_in_full_under_its_heading(skerry: Skerry) -> None:
    text = skerry("--help").text
    for group, commands in GROUPS.items():
        listed = text.partition(f"\n{group}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == commands
        assert not [line for line in listed if line.endswith("...")]
    there = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert there | {group.name for group in app.registered_groups} == set(COMMANDS)
    assert skerry().text == text


@pytest.mark.parametrize("group", NESTED)
def test_help_of_a_group_lists_its_commands_in_full(skerry: Skerry, group: str) -> None:
    listed = skerry("help", group).text.partition("\nCommands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == NESTED[group]
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("command", [*SINGLE, *NESTED])
def test_help_of_a_command_is_what_its_option_shows(skerry: Skerry, command: str) -> None:
    assert skerry("help", *command.split()).text == skerry(*command.split(), "--help").text


def test_help_alone_lists_the_commands_and_an_unknown_one_is_wrong_usage(skerry: Skerry) -> None:
    assert skerry("help").text == skerry("--help").text
    done = skerry("help", "no-such-command")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        "error: there is no command 'no-such-command' (INVALID_ARGUMENT)",
    )


@pytest.mark.parametrize("command", [*SINGLE, *NESTED])
def test_every_command_has_help_with_an_example(skerry: Skerry, command: str) -> None:
    done = skerry(*command.split(), "--help")
    assert done.code == 0
    assert f"  Example:\n    skerry {command}" in done.text


@pytest.mark.parametrize(
    "command",
    [
        *("run", "exec", "logs", "kill", "cp", "edit", "rm", "usage", "stop", "restart", "reset", "volume rm"),
        *("template build", "template rm", "archive"),
    ],
)
def test_commands_that_fail_in_ways_say_their_exit_codes(skerry: Skerry, command: str) -> None:
    assert "\n  Exit codes:\n    " in skerry("help", *command.split()).text


def test_every_command_that_prints_data_prints_json(skerry: Skerry) -> None:
    for command in set(SINGLE) - NO_DATA:
        assert "-o, --output <text|json>" in skerry(*command.split(), "--help").text, command


def test_help_is_quick(skerry: Skerry) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        skerry("--help")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 1.0  # 0.03 s on an idle machine


def test_help_loads_neither_typer_nor_asyncio_nor_the_sdk() -> None:
    program = "import sys, skerry.cli.main as it; sys.argv[1:] = ['--help']; it.main(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "skerry.cli.table" in loaded
    assert not {"typer", "asyncio", "anyio", "rich", "skerry.core", "skerry.sdk"} & set(loaded)


def test_a_command_is_told_in_the_first_sentence_of_its_docstring() -> None:
    told = {name: summary for name, (_, _, _, summary) in (COMMANDS_TOLD | GROUPS_TOLD).items()}
    own = {each.name: inspect.getdoc(each.callback) or "" for each in app.registered_commands}
    own |= {each.name: each.typer_instance.info.help for each in app.registered_groups}
    assert told == {name: text.split("\n\n")[0].split(". ")[0].removesuffix(".") + "." for name, text in own.items()}


def test_the_exit_waits_for_threads_calls_handlers_and_keeps_the_code() -> None:
    program = """
import atexit, sys, threading, time
from skerry.cli import main

def run(arguments):
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    raise SystemExit(7)

main._run = run
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "thread\nhandler\n", "")


def test_ctrl_c_before_a_command_begins_is_no_traceback() -> None:
    program = "from skerry.cli import main\ndef run(arguments): raise KeyboardInterrupt\nmain._run = run; main.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_version_is_that_of_the_package(skerry: Skerry) -> None:
    assert skerry("--version").text == f"skerry {version('skerry')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("volume",),
        ("volume", "nope"),
        ("run", "--no-such-option", "--", "true"),
        ("run",),
        ("exec", "x"),
        ("ps", "extra"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint_and_exit_2(skerry: Skerry, arguments: tuple[str, ...]) -> None:
    done = skerry(*arguments)
    first, second = done.err.splitlines()
    assert (done.code, done.out) == (2, b"")
    assert first.startswith("error: ")
    assert first.endswith("(INVALID_ARGUMENT)")
    assert second.startswith("hint: see `skerry")


def test_wrong_usage_is_json_where_json_is_asked_for(skerry: Skerry) -> None:
    done = skerry("ps", "--no-such-option", "--output=json")
    assert (done.code, done.error["code"]) == (2, "INVALID_ARGUMENT")


def test_an_unexpected_failure_has_no_traceback_unless_asked_for(skerry: Skerry) -> None:
    env = {"SKERRY_HOME": "relative/path"}
    done = skerry("ps", env=env)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "(INVALID_ARGUMENT)" in done.err
    assert "Traceback" in skerry("ps", env=env | {"SKERRY_DEBUG": "1"}).err


def test_doctor_says_that_sandboxes_work_here_and_how_isolated(skerry: Skerry) -> None:
    done = skerry("doctor")
    assert done.code == 0, done.text
    assert "\nisolation: " in done.text
    data = skerry("doctor", "-o", "json").json
    assert data["works"] is True
    assert data["isolation"]
    assert {"name", "ok", "detail", "fix", "required"} == set(data["checks"][0])


NO_CRUN = {"SKERRY_RUNTIME": "crun", "PATH": "/nowhere"}


def test_doctor_fails_with_the_fix_where_the_runtime_is_missing(skerry: Skerry) -> None:
    done = skerry("doctor", env=NO_CRUN)
    assert done.code == 1, done.text
    assert "missing  runtime: " in done.text
    assert "fix: apt-get install -y crun" in done.text


def test_run_without_the_runtime_says_how_to_get_it(skerry: Skerry) -> None:
    done = skerry("run", "--", "true", env=NO_CRUN)
    first, second = done.err.splitlines()
    assert (done.code, done.out) == (125, b"")
    assert first.endswith("(PROVIDER_UNAVAILABLE)")
    assert second == "hint: apt-get install -y crun"


def test_without_root_there_is_one_clear_line() -> None:
    program = "import os; os.geteuid = lambda: 1000; from skerry.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--", "true"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (125, "")
    first, second = done.stderr.splitlines()
    assert "root" in first
    assert first.endswith("(PROVIDER_UNAVAILABLE)")
    assert second.startswith("hint: ")


def test_bench_compares_with_a_plain_process(skerry: Skerry) -> None:
    rows = skerry("bench", "-n", "3", "-o", "json").json
    assert [row["what"] for row in rows] == ["plain process", "create and first command", "command"]
    assert rows[0]["ratio"] == 1
    assert all(row["p50_ms"] > 0 and row["rounds"] == 3 for row in rows)
    assert "create and first command" in skerry("bench", "-n", "2").text


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("list", "ps"),
        ("delete my-box", "rm"),
        ("images", "template ls"),
        ("version", "--version"),
        ("tempalte", "template"),
        ("volume delete x", "rm"),
        ("template list", "ls"),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_was_meant(skerry: Skerry, asked: str, meant: str) -> None:
    told = skerry(*asked.split()).err
    assert f"did you mean '{meant}'?" in told and told.count("\n") == 2


def test_every_word_of_other_programs_leads_to_a_command_that_exists() -> None:
    for word, meant in (MEANT | MEANT_ALONE).items():
        first, *rest = meant.split()
        assert word not in {**COMMANDS_TOLD, **GROUPS_TOLD}
        assert first in ("--version", "ls", *COMMANDS_TOLD, *GROUPS_TOLD)
        assert not rest or rest[0].startswith("-") or rest[0] in NESTED[first]


def test_a_time_may_have_units_and_what_is_none_is_refused(skerry: Skerry) -> None:
    told = skerry("create", "--lifetime", "1x").err
    assert "--lifetime" in told and "'1x' is not a duration" in told and "1h30m" in told
    told = skerry("create", "--lifetime", "30d").err
    assert "a lifetime of 30d is above the maximum" in told and "SKERRY_MAX_LIFETIME" in told
