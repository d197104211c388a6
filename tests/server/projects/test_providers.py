"""A server with two providers: each thing is looked for, ended and reported by the one that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from examples.memory_provider import MemoryProvider
from skerry.core import ProviderUnavailable, SandboxInfo, SandboxNotFound, SandboxSpec
from skerry.server.access.identity import Actor
from skerry.server.jobs.event_collector import Hub
from skerry.server.projects.leases import Leases
from skerry.server.projects.providers import Providers
from skerry.server.projects.sandboxes import Directory
from skerry.server.store import Belonging, Lease, Store

pytestmark = pytest.mark.anyio


class Second(MemoryProvider):
    name = "second"
    silent = False

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        made = await super().create(spec)
        self.boxes[made.id].info = made = _of(made, self.name)
        return made

    async def list(self) -> list[SandboxInfo]:
        if self.silent:
            raise ProviderUnavailable("it does not answer")
        return list(await super().list())


def _of(info: SandboxInfo, provider: str) -> SandboxInfo:
    from dataclasses import replace

    return replace(info, provider=provider)


class Both:
    def __init__(self, store: Store) -> None:
        self.first, self.second, self.store = MemoryProvider(), Second(), store
        self.directory = Directory(Providers([self.first, self.second]), store)
        self.hub = Hub(store, self.directory)

    async def make(self, provider: MemoryProvider, name: str) -> str:
        return (await provider.create(SandboxSpec(name=name, network="open"))).id


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    store = Store.open(tmp_path / "skerry.db", provider="memory")
    made = Both(store)
    yield made
    for provider in (made.first, made.second):
        for id in list(provider.boxes):
            await provider.destroy(id)
    await store.close()


async def test_a_sandbox_is_found_on_the_provider_that_has_it(both: Both) -> None:
    admin = Actor(user=await both.store.users.add("admin", admin=True))
    one, other = await both.make(both.first, "one"), await both.make(both.second, "other")
    for asked, provider in ((one, both.first), (other, both.second), ("one", both.first), ("other", both.second)):
        _, found = await both.directory.locate(admin, asked)
        assert found is not None and found.provider == provider.name == (await found.info()).provider
        assert both.directory.providers.of(found) is provider is both.directory.provider_of(found.id)
    assert [(info.id, info.provider) for info in await both.directory.all()] == [(one, "memory"), (other, "second")]


async def test_a_provider_that_does_not_answer_keeps_nothing_from_the_others(both: Both) -> None:
    kept, ended = await both.make(both.second, "kept"), await both.make(both.first, "ended")
    await both.hub.look()
    assert {item.id: item.provider for item in both.store.accounts.all_owned("sandbox")} == {
        kept: "second",
        ended: "memory",
    }
    await both.first.destroy(ended)
    both.second.silent = True
    with pytest.raises(ProviderUnavailable, match="does not answer"):
        await both.hub.look()
    assert [item.id for item in both.store.accounts.all_owned("sandbox")] == [kept]
    last = await both.store.events.of_sandbox(ended)
    assert last is not None and last.type == "destroyed"


async def test_a_lease_ends_a_sandbox_where_it_is(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    box = await both.make(both.second, "leased")
    await both.hub.look()
    await both.store.leases.put(Lease(kind="sandbox", id=box, holder="a-holder-that-is-gone", process=1))
    monkeypatch.setattr("skerry.server.projects.leases.LIFETIME", -1.0)
    assert await Leases(both.store, both.directory).sweep() == [box]
    with pytest.raises(SandboxNotFound):
        await both.second.get(box)


async def test_what_is_on_a_provider_that_was_taken_away_says_so(both: Both) -> None:
    item = Belonging(kind="sandbox", id="sb-00000000", provider="cloud", project_id=None, name="far")
    await both.store.ownership.put([item])
    await both.hub.look()
    assert both.store.accounts.owned("sandbox", item.id) == item, "it may come back with its provider"
    with pytest.raises(ProviderUnavailable, match="no provider 'cloud'") as refusal:
        both.directory.provider_of(item.id)
    assert "memory, second" in refusal.value.hint
