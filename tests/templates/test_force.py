"""What is built anew takes the place of what is there, and what is removed is gone as a whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skerry import AsyncSandbox, AsyncTemplates, BuildProgress, TemplateBuildFailed
from skerry.core import registry
from skerry.core.models import SandboxInfo, SandboxSpec
from skerry.providers.local import LocalProvider
from skerry.providers.local.locks import FileLock
from skerry.providers.local.storage.bases import Base
from skerry.providers.local.storage.export_manifest import StateFile
from skerry.providers.local.storage.snapshot_record import Kept
from skerry.templates import Command, Scripts, Template
from tests import inventory
from tests.templates.archives import tiny

pytestmark = pytest.mark.anyio


async def test_force_builds_anew_though_something_has_the_layer(templates: AsyncTemplates, skerry_home: Path) -> None:
    template = tiny("fresh", "date +%s%N >stamp")
    steps: list[BuildProgress] = []

    async def stamp(which: Template | str = "fresh") -> str:
        async with await AsyncSandbox.create(template=which) as sandbox:
            return (await sandbox.exec("cat stamp", check=True)).stdout

    def layers() -> int:
        return len(list((skerry_home / "pool/layers").iterdir()))

    await templates.build(template)
    await templates.build(tiny("sharing", "date +%s%N >stamp", ports=(80,)))  # has the same layer
    before = await stamp()
    assert await stamp(template) == before
    forced = await templates.build(template, force=True, on_progress=steps.append)
    assert steps != []
    after = await stamp()
    assert after != before
    assert await stamp(template) == after  # the definition leads to the new one, too
    assert await templates.build(template) == forced
    assert await stamp("sharing") == before
    assert [info.name for info in await templates.list() if info.digest] == ["fresh", "sharing"]
    await templates.remove("sharing")
    assert layers() == 1
    await templates.build(template, force=True)
    assert layers() == 1  # nobody needed the one before


async def test_what_force_replaces_stays_for_who_needs_it_and_then_goes(
    templates: AsyncTemplates, skerry_home: Path
) -> None:
    scripts = Scripts(build=(Command("date +%s%N >stamp"),), post_start=(Command("exec sleep 1000"),))
    below, above = tiny("below", scripts=scripts), tiny("above", "touch more", base="below")
    await templates.build(below)
    old = await templates.build(above)
    async with await AsyncSandbox.create(template="below") as sandbox:
        before = (await sandbox.exec("cat stamp")).stdout
        await templates.build(below, force=True)
        await sandbox.stop()
        assert (await sandbox.exec("cat stamp")).stdout == before  # this call has started it
        assert len(await sandbox.processes.list()) == 1
        async with await sandbox.clone() as copy:
            assert (await copy.exec("cat stamp")).stdout == before
    async with await AsyncSandbox.create(template="above") as sandbox:
        assert (await sandbox.exec("cat stamp")).stdout == before  # built on the old one
    new = await templates.build(above)
    assert new.digest != old.digest
    async with await AsyncSandbox.create(template="above") as sandbox:
        assert (await sandbox.exec("cat stamp")).stdout != before
    assert len(list((skerry_home / "pool/layers").iterdir())) == 4
    await templates.remove("above")
    await registry.provider("local").sweep()
    assert len(list((skerry_home / "pool/layers").iterdir())) == 1
    assert [info.name for info in await templates.list() if info.digest] == ["below"]


async def test_a_forced_build_that_fails_leaves_what_was_there(templates: AsyncTemplates, skerry_home: Path) -> None:
    template = tiny("lasting", "date +%N >stamp")
    good = await templates.build(template)
    before = inventory.take(skerry_home)
    with pytest.raises(TemplateBuildFailed):
        await templates.build(template, force=True, timeout=0.001)
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}
    assert (await templates.show("lasting")).digest == good.digest
    async with await AsyncSandbox.create(template="lasting") as sandbox:
        assert (await sandbox.exec("cat stamp")).ok


async def test_one_that_was_replaced_and_is_wanted_again_is_found_by_name(templates: AsyncTemplates) -> None:
    template = tiny("again", "touch file")
    first = await templates.build(template)
    async with await AsyncSandbox.create(template="again"):
        await templates.build(template, force=True)
        await templates.remove("again")
        assert (await templates.build(template)).digest == first.digest
        assert (await templates.show("again")).digest == first.digest


async def test_a_template_that_is_replaced_at_the_last_moment_is_found_again(
    templates: AsyncTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tiny("moving", "date +%N >stamp")
    await templates.build(template)
    create = LocalProvider.create

    async def replaced_before(self: LocalProvider, spec: SandboxSpec) -> SandboxInfo:
        if spec.purpose == "late":
            monkeypatch.setattr(LocalProvider, "create", create)
            await templates.build(template, force=True)
        return await create(self, spec)

    monkeypatch.setattr(LocalProvider, "create", replaced_before)
    async with await AsyncSandbox.create(template="moving", purpose="late") as sandbox:
        assert (await sandbox.info()).template_id == (await templates.show("moving")).digest


async def test_a_layer_whose_removal_was_cut_short_is_no_layer(
    templates: AsyncTemplates, skerry_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    template = tiny("half", "echo whole >file")
    await templates.build(template)

    def cut_short(path: Path) -> None:
        next(path.glob("u/workspace/file")).unlink()
        raise OSError(errno.EIO, "killed here")

    with monkeypatch.context() as patch:
        patch.setattr(provider.engine.storage, "remove", cut_short)
        with pytest.raises(OSError, match="killed here"):
            await templates.remove("half")
    async with await AsyncSandbox.create(template=template) as sandbox:
        assert (await sandbox.exec("cat file")).stdout == "whole\n"
    await provider.sweep()
    assert len(list((skerry_home / "pool/layers").iterdir())) == 1


async def test_an_import_keeps_its_template_until_that_is_written_down(
    templates: AsyncTemplates, tmp_path: Path, skerry_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    exports = provider.engine.exports
    announce, removable = exports._announce, list[bool]()

    def announce_and_look(count: int, about: StateFile, base: Base, encrypted: bool) -> list[Kept]:
        lock = FileLock(skerry_home / "templates/lock")
        removable.append(lock.try_acquire())
        lock.release()
        return announce(count, about, base, encrypted)

    async with await AsyncSandbox.create(template=tiny("carried", "echo built >file")) as sandbox:
        await sandbox.export_state(tmp_path / "state")
    monkeypatch.setattr(exports, "_announce", announce_and_look)
    async with await AsyncSandbox.create(import_state=tmp_path / "state") as sandbox:
        assert (await sandbox.exec("cat file")).stdout == "built\n"
    assert removable == [False]
