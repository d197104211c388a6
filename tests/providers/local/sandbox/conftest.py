"""Homes with either kind of storage, and what tests of a sandbox's life do in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core.models import State
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from tests import inventory

PATIENCE = 30.0

each_storage = pytest.mark.parametrize("home", ["pool", "directory"], indirect=True)


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A SKERRY_HOME of this module's own."""
    storage = getattr(request, "param", "pool")
    path = tmp_path_factory.mktemp(storage) / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKERRY_STORAGE", storage)
        Engine(path).prepare()
        yield path


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    engine = Engine(home)
    engine.prepare()
    before = inventory.take(home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)
    assert inventory.left(before, inventory.settle(home, before)) == {}


def connect(engine: Engine, sandbox_id: str, *, auto_start: bool = True) -> Sandbox:
    return Sandbox.get(sandbox_id, provider=LocalProvider(engine), auto_start=auto_start)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fail(engine: Engine, sandbox_id: str) -> None:
    """Kill the first process, as a bug in it or somebody on the host would."""
    init = engine.store.read(sandbox_id).init
    assert init is not None
    init.kill(PATIENCE)
    assert engine.get(sandbox_id).state is State.FAILED
