"""The local provider keeps the contract: all of it, and what its storage has a part in also where there is no btrfs."""

from __future__ import annotations

import dataclasses
from typing import Any, BinaryIO

import pytest

from skerry import testing
from skerry.core import registry
from skerry.core.contract.provider import Provider
from skerry.core.models import SandboxInfo, SandboxSpec, VolumeInfo
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


class _Sealed(LocalProvider):
    """Encrypts whatever does not begin with something that is encrypted or not."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        info = await super().create(_sealed(spec))
        assert info.encrypted
        return info

    async def import_state(self, source: BinaryIO, spec: SandboxSpec, **options: Any) -> SandboxInfo:
        return await super().import_state(source, _sealed(spec), **options)

    async def create_volume(self, name: str, **options: Any) -> VolumeInfo:
        return await super().create_volume(name, **{**options, "encrypted": True})


def _sealed(spec: SandboxSpec) -> SandboxSpec:
    return spec if spec.snapshot is not None else dataclasses.replace(spec, encrypted=True)


class _Encrypted:
    """The disks of all sandboxes are encrypted."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, tmp_path_factory: pytest.TempPathFactory) -> Provider:
        engine = Engine(tmp_path_factory.mktemp("sealed") / "home")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SKERRY_POOL_SIZE", "2GB")
            engine.prepare()
            engine.create(SandboxSpec(encrypted=True, timeout=1))
        return _Sealed(engine)


for _suite in testing.SUITES:
    globals()[f"Test{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Local, _suite), {})
for _suite in (
    testing.SnapshotsConformance,
    testing.CopiesConformance,
    testing.PortableConformance,
    testing.ArchivableConformance,
):
    globals()[f"TestDirectories{_suite.__name__}"] = type(f"Test{_suite.__name__}", (_Directories, _suite), {})
for _suite in (
    testing.LifecycleConformance,
    testing.StoppingConformance,
    testing.LimitsConformance,
    testing.ResizableConformance,
    testing.SnapshotsConformance,
    testing.CopiesConformance,
    testing.PortableConformance,
    testing.ArchivableConformance,
    testing.VolumesConformance,
):
    _name = f"TestEncrypted{_suite.__name__}"
    globals()[_name] = pytest.mark.long(type(_name, (_Encrypted, _suite), {}))
