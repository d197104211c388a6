"""Completion: what bash makes of the script, and that Tab loads little."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import SKERRY, Skerry

COMPLETE = r"""
eval "$(skerry completion bash)"
COMP_LINE=$1 COMP_POINT=${#1}
_skerry
printf '%s\n' "${COMPREPLY[@]}"
"""


def complete(line: str, *, cwd: Path | None = None) -> list[str]:
    """What bash would offer in the place of the word at the end of `line`, or of its part after a colon."""
    env = os.environ | {"PATH": f"{Path(SKERRY).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", line], capture_output=True, text=True, env=env, cwd=cwd, timeout=60, check=True
    )
    assert done.stderr == ""
    return [offer for offer in done.stdout.split("\n") if offer]


@pytest.fixture(scope="module")
def named(skerry: Skerry) -> Iterator[str]:
    """A sandbox with a name and some files."""
    name = "tab-box"
    assert skerry("create", "--name", name).code == 0
    skerry("exec", name, "--", "sh", "-c", "mkdir -p src/lib; touch src/app.py 'a file' .hidden")
    yield name
    skerry("rm", name)


def test_commands_and_options_are_completed() -> None:
    assert complete("skerry log") == ["logs ", "login ", "logout "]
    assert {"create ", "cp ", "help "} <= set(complete("skerry "))
    assert "--help " in complete("skerry -")
    assert complete("skerry logs --f") == ["--follow "]
    assert complete("skerry ps --output ") == ["text ", "json "]
    assert complete("skerry ps --output=j") == ["json "]
    assert complete("skerry completion ") == ["bash ", "zsh ", "fish "]
    assert complete("skerry help comp") == ["completion "]


def test_sandboxes_are_completed_where_one_is_meant(named: str) -> None:
    assert f"{named} " in complete("skerry info ")
    assert complete("skerry exec -w /tmp tab") == [f"{named} "]
    assert complete("skerry cat tab") == [f"{named}:"]
    assert complete(f"skerry rm {named} tab") == []  # it is there already
    assert complete(f"skerry exec {named} -- tab") == []


def test_remote_paths_are_completed_after_the_colon(named: str, tmp_path: Path) -> None:
    assert complete(f"skerry cat {named}:") == ["a\\ file ", "src/"]
    assert complete(f"skerry cp {named}:s") == ["src/"]
    assert complete(f"skerry cp {named}:src/") == ["src/app.py ", "src/lib/"]
    assert complete(f"skerry cp x {named}:/workspace/src/a") == ["/workspace/src/app.py "]
    assert complete(f"skerry ls {named}:.h") == [".hidden "]
    assert complete(f"skerry edit '{named}:a f") == ["a\\ file "]
    assert complete(f"skerry cat {named}:no/such/") == []
    assert complete("skerry cat no-such-box:") == []


def test_local_paths_are_completed_for_cp(named: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").touch()
    (tmp_path / "tabs").mkdir()
    assert complete("skerry cp tab", cwd=tmp_path) == ["table.csv ", "tabs/", f"{named}:"]
    assert complete(f"skerry cp {tmp_path}/table", cwd=tmp_path) == [f"{tmp_path}/table.csv "]


@pytest.mark.parametrize("line", ["skerry nonsense ", "skerry cat 'open", "skerry ps --nonsense ", "skerry run -- "])
def test_where_nothing_is_known_nothing_is_offered(line: str) -> None:
    assert complete(line) == []


def test_zsh_and_fish_ask_by_words_and_get_a_description(skerry: Skerry) -> None:
    for shell, end in (("zsh", " "), ("fish", "")):
        assert skerry("__complete", shell, "logs").text == f"logs{end}\tPrint what a background process has written.\n"
        assert skerry("__complete", shell, "ps", "-o", "js").text == f"json{end}\n"
        assert "__complete " + shell in skerry("completion", shell).text


def test_completing_a_command_loads_neither_asyncio_nor_the_sdk() -> None:
    program = """
import sys
sys.argv = ["skerry", "__complete", "bash", "skerry logs --", ":"]
from skerry.cli.main import main
main()
print(*sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"asyncio", "anyio", "rich", "skerry.sdk", "skerry.providers.local"} & set(done.stdout.split())


def test_install_writes_below_the_home_directory_and_nowhere_else(skerry: Skerry, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    for shell, path in (
        ("bash", ".local/share/bash-completion/completions/skerry"),
        ("zsh", ".local/share/zsh/site-functions/_skerry"),
        ("fish", ".config/fish/completions/skerry.fish"),
    ):
        done = skerry("completion", shell, "--install", env=env)
        assert (done.code, done.text) == (0, f"{tmp_path}/{path}\n")
        assert (tmp_path / path).read_text() == skerry("completion", shell).text
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
