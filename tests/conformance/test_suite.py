"""The suite itself: third parties can use it, it fails for who lies, and it has as many cases as it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.testing import SUITES, cases_of

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PACKAGE = """
import pytest
from skerry.testing import *
from examples.memory_provider import MemoryProvider
from tests.conformance.liars import *

class Mine:
    patience = 4.0

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls):
        return {"network": "open"}

class TestMine(Mine, SUITE):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls):
        return PROVIDER()
"""


# schemathesis is there for tests of the server alone, and takes three seconds to load
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis")


def run_pytest(directory: Path, provider: str, suite: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a third party does: a file that derives from a class of the suite, and pytest with nothing configured."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    file = directory / "test_mine.py"
    file.write_text(PACKAGE.replace("SUITE", suite).replace("PROVIDER", provider))
    command = [sys.executable, "-W", "error", *PYTEST, "-q", "-rfs", str(file)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return subprocess.run(
        [*command, *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_third_party_derives_a_class_and_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "MemoryProvider", "EnvConformance")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^8 passed", done.stdout, re.MULTILINE)


def test_what_is_not_offered_is_neither_passed_nor_failed(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "MemoryProvider", "ResizableConformance")
    assert done.returncode == 0, done.stdout
    assert "not offered: memory does not have the capability resizable" in done.stdout
    assert re.search(r"^\d+ skipped", done.stdout, re.MULTILINE)


def test_a_class_without_a_provider_says_what_to_override(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text(
        "from skerry.testing import EnvConformance\nclass TestNone(EnvConformance): pass\n"
    )
    done = subprocess.run(
        [sys.executable, *PYTEST, "-q", "test_none.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "TestNone does not override the fixture `provider`" in done.stdout


@pytest.mark.parametrize(
    ("liar", "suite", "caught"),
    [
        ("AlwaysZero", "ExecConformance", "test_an_exit_code_is_reported_as_it_is[42]"),
        ("SpoilsFiles", "FilesConformance", "test_what_is_written_is_there[18433]"),
        ("DropsTimeouts", "TimeoutsConformance", "test_check_makes_a_timeout_an_error"),
        ("MakesDuplicates", "LifecycleConformance", "test_a_lost_answer_and_a_retry_make_one_sandbox"),
    ],
)
def test_a_provider_that_lies_fails(liar: str, suite: str, caught: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, liar, suite, "-k", caught.partition("[")[0])
    assert done.returncode == 1, done.stdout
    assert f"TestMine::{caught}" in done.stdout.partition("short test summary")[2]


def test_a_provider_that_hangs_fails_too(tmp_path: Path) -> None:
    for case in ("test_an_unset_variable_is_gone", "test_the_host_s_environment_stays_out"):
        done = run_pytest(tmp_path, "Hangs", "EnvConformance", "-k", case)
        assert done.returncode == 1
        assert "TimeoutError" in done.stdout


def test_there_are_at_least_150_cases_and_each_says_what_it_shows() -> None:
    everything = [(suite.title, name, line) for suite in SUITES for name, line in cases_of(suite).items()]
    assert len(everything) >= 150
    assert [case for case in everything if not case[2]] == []
    assert len({suite.title for suite in SUITES}) == len(SUITES)


def test_every_class_is_exported_with_its_docstring() -> None:
    import skerry.testing

    for suite in SUITES:
        assert suite.__name__ in skerry.testing.__all__
        assert suite.__doc__


@pytest.mark.parametrize("provider", ["local", "memory", "remote"])
def test_the_recorded_results_are_of_this_suite(provider: str) -> None:
    recorded = json.loads((REFERENCE / f"conformance-{provider}.json").read_text())
    now = {suite.title: len(cases_of(suite)) for suite in SUITES}
    assert {entry["suite"]: entry["cases"] for entry in recorded["classes"]} == now, "run `make conformance`"
    assert recorded["failed"] == 0


def test_every_class_and_case_is_in_the_reference() -> None:
    page = (REFERENCE / "conformance.md").read_text()
    for suite in SUITES:
        assert f"## {suite.title}" in page
        for name in cases_of(suite):
            assert f"`{name}`" in page


def test_a_server_offers_everything_that_this_machine_does() -> None:
    """The same counts, case by case: nothing is skipped over the network that is not skipped here."""
    local, remote = (json.loads((REFERENCE / f"conformance-{name}.json").read_text()) for name in ("local", "remote"))
    assert remote["classes"] == local["classes"]
