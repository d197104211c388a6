"""The local provider keeps the contract: all of it, and what its storage has a part in also where there is no btrfs."""

from __future__ import annotations

import pytest

from skerry import testing
from skerry.core import registry
from skerry.core.contract.provider import Provider
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine


class _Local:
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Provider:
        return registry.provider("local")


class _Directories:
    """Trees are directories, and their copies are copies."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tmp_path_factory: pytest.TempPathFactory) -> Provider:
        engine = Engine(tmp_path_factory.mktemp("copies") / "home")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SKERRY_STORAGE", "directory")
            engine.prepare()
        assert engine.storage.kind == "directory"
        return LocalProvider(engine)


for _suite in testing.SUITES:
    globals()[f"Test{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Local, _suite), {})
for _suite in (
    testing.SnapshotsConformance,
    testing.CopiesConformance,
    testing.PortableConformance,
    testing.ArchivableConformance,
):
    globals()[f"TestDirectories{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Directories, _suite), {})
