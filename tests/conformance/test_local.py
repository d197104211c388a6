"""The local provider keeps the contract: all of it."""

from __future__ import annotations

import pytest

from skerry import testing
from skerry.core import registry
from skerry.core.provider import Provider


class _Local:
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Provider:
        return registry.provider("local")


for _suite in testing.SUITES:
    globals()[f"Test{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Local, _suite), {})
