"""The example provider keeps the contract, as far as it offers it; what it cannot do it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from examples.memory_provider import MemoryProvider
from skerry import testing
from skerry.core.provider import Provider

NOT_OFFERED = {"limits", "network", "pausing", "resizable", "stopping", "volumes"}
"""Classes some or all of whose cases need more than a plain process: they may be skipped, others may not."""


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
    globals()[_made.__name__] = pytest.mark.may_skip(_made) if _suite.title in NOT_OFFERED else _made
