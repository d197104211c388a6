"""The example provider keeps the contract, as far as it offers it; what it cannot do it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from examples.memory_provider import MemoryProvider
from skerry import testing
from skerry.core.contract.provider import CAPABILITIES, Provider

NOT_OFFERED = {"limits", "network"}
"""Classes some of whose cases need more than a plain process: they may be skipped, as those of a capability that this
provider does not have; others may not, but for NOT_OFFERED_CASES of conftest.py."""


OWN = (
    testing.LifecycleConformance,
    testing.ListingConformance,
    testing.ClientsConformance,
    testing.DeadlinesConformance,
    testing.LeasesConformance,
    testing.ExecConformance,
)
"""Classes that try code of this provider. The others try the agent, as they do on the local one: `make test-all` does."""


def _may_skip(suite: type[testing.Conformance]) -> bool:
    needed = CAPABILITIES.get(suite.needs or "")
    return suite.title in NOT_OFFERED or (needed is not None and not issubclass(MemoryProvider, needed))


class _Memory:
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Provider:
        return MemoryProvider()

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, Any]:
        return {"network": "open"}


for _suite in testing.SUITES:
    _made = type(f"Test{_suite.__name__}", (_Memory, _suite), {})
    _made = pytest.mark.may_skip(_made) if _may_skip(_suite) else _made
    globals()[_made.__name__] = _made if _suite in OWN else pytest.mark.long(_made)
