"""A provider whose agent plays what a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry import AsyncSandbox
from tests.sdk.fake_agent import FakeProvider


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    provider = FakeProvider()
    yield provider
    await provider.aclose()
    assert not provider.failures, provider.failures


@pytest.fixture
async def sandbox(fake: FakeProvider) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of the fake provider; the test sets `fake.script` before it uses it."""
    made = await AsyncSandbox.create(fake)
    yield made
    await made.close()
