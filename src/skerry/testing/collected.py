"""What `skerry conformance` lets pytest collect: every class, with the provider that the command was told."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.core import Provider
from skerry.testing.cases.base import Conformance
from skerry.testing.suites import SUITES

PROVIDER = pytest.StashKey[Provider]()
OPTIONS = pytest.StashKey[dict[str, Any]]()


class _Told:
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, pytestconfig: pytest.Config) -> Provider:
        return pytestconfig.stash[PROVIDER]

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, pytestconfig: pytest.Config) -> dict[str, Any]:
        return pytestconfig.stash[OPTIONS]


def name(suite: type[Conformance]) -> str:
    """What pytest knows a class by."""
    return f"Test{suite.__name__}"


for _suite in SUITES:
    globals()[name(_suite)] = type(name(_suite), (_Told, _suite), {})
