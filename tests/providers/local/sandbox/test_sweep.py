"""The sweep: what cannot go now keeps nothing else from going, and nobody from working."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from skerry.core import errors
from skerry.core.models import SandboxSpec, State
from skerry.providers.local.engine import Engine
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.storage.pool import BtrfsStorage


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The ids of sandboxes whose processes do not die, and the names of trees that are busy."""
    held: set[str] = set()
    remove_group, remove_tree = Cgroups.remove, BtrfsStorage.remove

    def group(self: Cgroups, sandbox_id: str, timeout: float = 10.0) -> None:
        if sandbox_id in held:
            raise errors.ProviderUnavailable(f"processes of {sandbox_id} do not die")
        remove_group(self, sandbox_id, timeout)

    def tree(self: BtrfsStorage, path: Path) -> None:
        if path.name in held:
            raise OSError(16, "Device or resource busy", str(path))
        remove_tree(self, path)

    monkeypatch.setattr(Cgroups, "remove", group)
    monkeypatch.setattr(BtrfsStorage, "remove", tree)
    return held


def kill(engine: Engine, sandbox_id: str) -> None:
    init = engine.store.read(sandbox_id).init
    assert init is not None
    os.kill(init.pid, signal.SIGKILL)
    assert init.wait(10)


def messages(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if about in entry.getMessage()]


def test_a_sandbox_that_cannot_be_ended_is_not_running_and_in_nobody_s_way(
    ready: Engine, stubborn: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad, good, lives = (ready.create(SandboxSpec()).id for _ in range(3))
    for sandbox_id in (bad, good):
        kill(ready, sandbox_id)
    stubborn.add(bad)
    fresh = Engine(ready.store.home)
    with caplog.at_level(logging.WARNING, "skerry.local"):
        states = {info.id: info.state for info in fresh.list()}  # its first command sweeps
    assert states == {bad: State.FAILED, good: State.FAILED, lives: State.RUNNING}
    assert messages(caplog, bad)
    with pytest.raises(errors.SandboxFailed):
        fresh.lookup.running(bad)
    assert fresh.store.read(good).slot is None
    assert fresh.store.read(bad).slot is not None
    stubborn.clear()
    Engine(ready.store.home).prepare()
    assert fresh.store.read(bad).slot is None
    assert not fresh.cgroups.exists(bad)


def test_one_whose_time_is_up_and_that_cannot_be_ended_is_not_listed(ready: Engine, stubborn: set[str]) -> None:
    bad = ready.create(SandboxSpec(timeout=0.2)).id
    init = ready.store.read(bad).init
    assert init is not None
    assert init.wait(10)
    stubborn.add(bad)
    assert [info.state for info in Engine(ready.store.home).list() if info.state is State.RUNNING] == []
    with pytest.raises(errors.ProviderUnavailable):
        ready.destroy(bad)  # who asks for it is told
    stubborn.clear()
    assert bad in ready.sweep()


def test_a_tree_that_is_busy_waits_for_the_next_sweep(
    ready: Engine, stubborn: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    storage, home = ready.storage, ready.store.home
    busy = [storage.uppers / "sb-aaaaaaaaaa", storage.kept / "~sn-aaaaaaaaaa", storage.volumes / ".gone-aaaaaaaa"]
    idle = [path.with_name(path.name.replace("aaaaaaaa", "bbbbbbbb")) for path in busy]
    half = storage.uppers / "sb-cccccccccc~new"
    for tree in (*busy, *idle, half):
        storage.create(tree, None)
    stubborn.update(tree.name for tree in busy)
    sandbox = ready.create(SandboxSpec()).id
    with caplog.at_level(logging.WARNING, "skerry.local"):
        assert [info.id for info in Engine(home).list()] == [sandbox]
    assert len(messages(caplog, "could not be removed")) == 3
    assert [tree.exists() for tree in (*busy, *idle, half)] == [True] * 3 + [False] * 4
    stubborn.clear()
    ready.sweep()
    assert not any(tree.exists() for tree in busy)


@pytest.mark.parametrize("call", ["dirty", "freeze"])
def test_a_sandbox_that_ends_while_something_is_done_to_it_has_failed(
    ready: Engine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sandbox = ready.create(SandboxSpec()).id
    there = getattr(Cgroups, call)

    def ends(self: Cgroups, sandbox_id: str) -> object:
        kill(ready, sandbox_id)
        self.remove(sandbox_id)
        return there(self, sandbox_id)

    monkeypatch.setattr(Cgroups, call, ends)
    take = partial(ready.capture.take, name=None, description="", hidden=False)
    do: Callable[[str], object] = take if call == "dirty" else ready.lifecycle.pause
    with pytest.raises(errors.SandboxFailed, match="just ended"):
        do(sandbox)
    assert ready.get(sandbox).state is State.FAILED
    assert not list(ready.snapshots.list())
