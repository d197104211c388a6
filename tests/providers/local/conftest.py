"""Homes of a test's own, with small pools that are made quickly and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.providers.local.engine import Engine
from tests import inventory
from tests.conftest import unmount_below


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A SKERRY_HOME that nothing has used yet; whatever is mounted below the test's directory goes with it."""
    monkeypatch.setenv("SKERRY_POOL_SIZE", "600MB")
    yield tmp_path / "home"
    for info in Engine(tmp_path / "home").list():
        Engine(tmp_path / "home").destroy(info.id)
    unmount_below(tmp_path)
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {tmp_path}/" in line]


@pytest.fixture
def ready(own_home: Path) -> Iterator[Engine]:
    """An engine whose storage is prepared; after the test its home has nothing that was not there before."""
    engine = Engine(own_home)
    engine.prepare()
    assert engine.storage.kind == "pool"
    before = inventory.take(own_home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    for volume in engine.volumes.list():
        engine.volumes.delete(volume.name)
    after = inventory.settle(own_home, before)
    assert (after.folders - before.folders, after.cgroups - before.cgroups) == (frozenset(), frozenset())
