"""What the tests of templates share."""

from __future__ import annotations

import asyncio

import pytest

from skerry.core import registry
from skerry.providers.local import LocalProvider


@pytest.fixture(scope="session", autouse=True)
def _home_in_use() -> None:
    """What the first use of a home makes is there before anything is counted."""
    asyncio.run(LocalProvider().list())


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes may write 20 MB, builds too."""
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    if provider.engine.storage.kind == "directory":
        pytest.skip("SKERRY_STORAGE=directory has no disk limit; another one runs this")
    monkeypatch.setenv("SKERRY_DISK", "20MB")
