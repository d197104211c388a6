"""`skerry conformance`: the table, the exit code, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Skerry

ROOT = Path(__file__).parents[3]
PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_it_prints_a_table_and_exits_with_0(skerry: Skerry, nothing_left: None) -> None:
    done = skerry("conformance", "--only", "env")
    assert done.code == 0, done.err
    assert [line.split() for line in done.text.splitlines()] == [
        ["CLASS", "CASES", "PASSED", "FAILED", "NOT", "OFFERED"],
        ["env", "8", "8", "0", "0"],
        ["all", "8", "8", "0", "0"],
    ]
    assert "env          ........" in done.err


def test_another_class_is_found_by_module_and_what_it_lacks_is_counted(skerry: Skerry) -> None:
    arguments = ("--provider", "examples.memory_provider:MemoryProvider", "--network", "open", "--only", "resizable")
    done = skerry("conformance", *arguments, "-o", "json", env=PATH)
    assert done.code == 0, done.err
    (row,) = done.json["classes"]
    assert (row["passed"], row["failed"], row["not_offered"]) == (0, 0, row["cases"])


def test_a_failure_is_shown_and_exits_with_1(skerry: Skerry) -> None:
    arguments = ("--provider", "tests.conformance.liars:MakesDuplicates", "--network", "open", "--only", "lifecycle")
    done = skerry("conformance", *arguments, env=PATH)
    assert done.code == 1
    assert "lifecycle: test_a_lost_answer_and_a_retry_make_one_sandbox" in done.err
    assert "assert again.id == first.id" in done.err


def test_nonsense_is_told(skerry: Skerry) -> None:
    for arguments, words in (
        (("--only", "nothing"), "one of lifecycle,"),
        (("--provider", "nothing"), "there is no provider"),
        (("--provider", "json:JSONDecoder"), "json:JSONDecoder is not a provider"),
        (("--provider", "no.such:Class"), "write it like package.module:Class"),
    ):
        done = skerry("conformance", *arguments)
        assert done.code == 1
        assert words in done.err


def test_without_pytest_it_says_what_to_install() -> None:
    hide = "import sys; sys.modules['pytest'] = None; from skerry.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hide, "conformance"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "hint: pip install 'pytest>=" in done.stderr
