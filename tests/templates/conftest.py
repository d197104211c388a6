"""What the tests of templates share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skerry import AsyncTemplates, Conflict, TemplateNotFound
from skerry.core import registry
from skerry.providers.local import LocalProvider


@pytest.fixture(scope="session", autouse=True)
def _home_in_use() -> None:
    """What the first use of a home makes is there before anything is counted."""
    asyncio.run(LocalProvider().list())


@pytest.fixture
async def templates() -> AsyncIterator[AsyncTemplates]:
    """All that is built during a test is gone after it."""
    made = AsyncTemplates()
    yield made
    for _ in range(3):  # bases after those that are built on them
        for info in await made.list():
            if info.digest:
                try:
                    await made.remove(info.digest)
                except (Conflict, TemplateNotFound):
                    pass


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes may write 20 MB, builds too."""
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    if provider.engine.storage.kind == "directory":
        pytest.skip("SKERRY_STORAGE=directory has no disk limit; another one runs this")
    monkeypatch.setenv("SKERRY_DISK", "20MB")
