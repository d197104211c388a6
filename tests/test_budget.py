"""`make test` is what a commit waits for: no module takes long, and all of them together fit into its minutes."""

from __future__ import annotations

import json

from tests.conftest import TIMINGS

MODULE = 90.0
"""Seconds a module may take: a worker that is left with a longer one keeps the others waiting."""
TOGETHER = 4 * 10 * 60.0
"""Seconds of all modules, of which four run at once, for ten minutes."""
LONGER = {
    "tests/conformance/test_local.py": 120.0,
    "tests/conformance/test_remote.py": 120.0,
    "tests/templates/test_builtin.py": 120.0,  # it builds every template, and waits for a network most of the time
}


def test_no_module_takes_longer_than_its_budget() -> None:
    """As `tools/run_tests.py --record` last measured it."""
    seconds = json.loads(TIMINGS.read_text())
    assert {name: value for name, value in seconds.items() if value > LONGER.get(name, MODULE)} == {}


def test_all_modules_together_fit_into_the_minutes_of_a_commit() -> None:
    assert sum(json.loads(TIMINGS.read_text()).values()) <= TOGETHER
