"""Homes for the tests of files that replace others."""

from __future__ import annotations

from tests.providers.local.conftest import own_home, ready  # noqa: F401 - fixtures
