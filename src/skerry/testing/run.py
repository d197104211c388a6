"""Runs the whole suite on one provider and counts what came out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skerry.core import InvalidArgument, Provider
from skerry.testing import collected
from skerry.testing.suites import SUITES, cases_of


@dataclass
class Outcome:
    """How the cases of one class ended. A case passes when all its variants do."""

    suite: str
    cases: int
    passed: int = 0
    failed: int = 0
    not_offered: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """What pytest says about each case that failed."""


def run_suite(
    provider: Provider,
    *,
    only: str | None = None,
    options: dict[str, Any] | None = None,
    on_case: Callable[[str, str, str], None] = lambda suite, case, outcome: None,
) -> list[Outcome]:
    """Run every class, or the one named `only`, in this process; it must not have a running event loop.

    `on_case` gets the class, the case and "passed", "failed" or "not offered" as they end.

    Raises InvalidArgument for a class that does not exist, KeyboardInterrupt when it was interrupted.
    """
    chosen = [suite for suite in SUITES if only in (None, suite.title)]
    if not chosen:
        names = ", ".join(suite.title for suite in SUITES)
        raise InvalidArgument(f"there is no class {only!r}", hint=f"use one of {names}")
    plugin = _Plugin(provider, options or {}, on_case)
    with tempfile.TemporaryDirectory() as nowhere:
        # Neither the caller's configuration nor its plugins take part: the result is about the provider alone.
        settings = Path(nowhere) / "pytest.ini"
        settings.write_text("[pytest]\n")
        isolated = ["--disable-plugin-autoload", "-p", "anyio", "-p", "no:cacheprovider", "-p", "no:terminal"]
        isolated += ["-c", str(settings), "--rootdir", nowhere, "--import-mode=importlib", "--capture=sys"]
        targets = [f"{collected.__file__}::{collected.name(suite)}" for suite in chosen]
        code = pytest.main([*isolated, *targets], plugins=[plugin])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run the suite: {code!r}")
    return [plugin.count(suite.title, cases_of(suite), collected.name(suite)) for suite in chosen]


class _Plugin:
    """Hands the provider over and keeps what pytest reports."""

    def __init__(self, provider: Provider, options: dict[str, Any], on_case: Callable[[str, str, str], None]) -> None:
        self._provider, self._options, self._on_case = provider, options, on_case
        self._ended: dict[tuple[str, str], set[str]] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[collected.PROVIDER] = self._provider
        config.stash[collected.OPTIONS] = self._options

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        _, suite, variant = report.nodeid.split("::")
        key = (suite, variant.partition("[")[0])
        outcome = "not offered" if report.skipped else report.outcome
        self._ended.setdefault(key, set()).add(outcome)
        if report.failed:
            self._texts[key] = report.longreprtext
        self._on_case(suite, key[1], outcome)

    def count(self, title: str, expected: dict[str, str], suite: str) -> Outcome:
        outcome = Outcome(suite=title, cases=len(expected))
        for case in expected:
            ended = self._ended.get((suite, case), {"failed"})  # a case that did not run has not passed
            if "failed" in ended:
                outcome.failed += 1
                outcome.failures[case] = self._texts.get((suite, case), "it did not run")
            elif ended == {"passed"}:
                outcome.passed += 1
            else:
                outcome.not_offered += 1
        return outcome
