"""The remote provider keeps the contract, all of it, through a real server over the local provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry import testing
from skerry.core.contract.provider import Provider
from skerry.providers.remote import RemoteProvider
from tests.server.conftest import Running


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteProvider]:
    running = Running(tmp_path_factory.mktemp("conforming"))  # with users of its own
    provider = RemoteProvider(running.url, api_key=running.key("admin"))
    yield provider
    provider.close()
    running.stop()


class _Remote:
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, remote: RemoteProvider) -> Provider:
        return remote


for _suite in testing.SUITES:
    globals()[f"Test{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Remote, _suite), {})
