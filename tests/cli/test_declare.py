"""Command lines that are parsed without typer: what typer makes of them, or nothing."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import typer

from skerry.cli.declare import parse
from skerry.cli.program import for_typer
from skerry.cli.table import AT_ONCE, COMMAND_LAST, COMMANDS

PLAIN = [
    "ps",
    "ps -q",
    "ps --quiet -o json",
    "ps --output=text",
    "info box",
    "info box -o json",
    "info -o json box",
    "info -- -box",
    "run true",
    "run -- true",
    "run -- -x --output json",
    "run true -o json -- -x",
    "run -e A=1 --env B --env=C=2=3 --cpu 0.5 --pids 7 --timeout 1e3 --memory=1GB -v a:/b --network open --sudo true",
    "run --keep -i -t -u nobody -w /tmp --name= -- sh -c x",
    "run - x",
    "exec box -- ls -l",
    "exec box ls -l",
    "exec -d --no-start box -- ls",
    "exec -o json box -- -o text",
    "create",
    "create --name box --lifetime 600 --on-timeout stop --auto-stop 5",
    "create --network=none --snapshot x -T python",
]
NOT_PLAIN = [
    *("ps -h", "ps --help", "ps extra", "ps -qo json", "ps -ojson", "ps -o", "ps -o yaml", "ps --nope", "ps --quiet=1"),
    *("ps -o json -o text", "ps -q -q", "ps --outpu json", "run", "run --", "run --cpu x true", "run --pids 1.5 true"),
    *("run --name -x true", "run --on-timeout stop true", "exec box", "exec", "info", "info a b", "rm --all", "cp a b"),
]


def _command(line: str) -> tuple[str, Callable[..., object], list[str]]:
    name, *words = line.split()
    _, module, function, _ = COMMANDS[name]
    return name, getattr(import_module(f"skerry.cli.{module}"), function), words


def _through_typer(name: str, command: Callable[..., object], words: list[str]) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    @functools.wraps(command)
    def seeing(**values: Any) -> None:
        seen.update(values)

    seeing.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command(name, context_settings={"allow_interspersed_args": name not in COMMAND_LAST})(for_typer(seeing))
    app([name, *words], standalone_mode=False)
    return seen


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_command_line_means_what_it_means_to_typer(line: str) -> None:
    name, command, words = _command(line)
    assert name in AT_ONCE
    found = parse(command, words, interspersed=name not in COMMAND_LAST)
    assert found == _through_typer(name, command, words)


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_any_other_command_line_is_left_to_typer(line: str) -> None:
    name, command, words = _command(line)
    assert parse(command, words, interspersed=name not in COMMAND_LAST) is None


def test_a_plain_command_loads_neither_typer_nor_what_it_does_not_use() -> None:
    program = "import atexit, sys; from skerry.cli.main import main; sys.argv[1:] = ['run', '--', 'true']\n"
    program += "try: main()\nexcept SystemExit as end: print(*sorted(sys.modules)); raise"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"skerry.sdk.sandbox", "skerry.providers.local"} <= loaded
    other = {
        f"skerry.sdk.{name}" for name in ("files.files", "git.git", "templates.templates", "state.export", "health")
    }
    assert not ({"typer", "rich", "importlib.metadata", "httpx2", "cryptography", "zstandard"} | other) & loaded
