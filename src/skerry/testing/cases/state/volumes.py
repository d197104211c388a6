"""Volumes: what is in them outlives sandboxes, is shared by them, and is lost only by delete."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from skerry.core import (
    Conflict,
    DiskFull,
    FileMissing,
    InvalidArgument,
    Provider,
    QuotaExceeded,
    ReadOnly,
    Unsupported,
    VolumeInfo,
    VolumeMount,
    VolumeNotFound,
)
from skerry.sdk import AsyncVolumes
from skerry.testing.cases.base import Conformance, Fresh, not_offered

Make = Callable[..., Awaitable[VolumeInfo]]
_numbers = itertools.count(1)


class VolumesConformance(Conformance):
    """Directories that sandboxes share and that outlive them."""

    title = "volumes"
    needs = "volumes"

    @pytest.fixture
    async def make(self, provider: Provider) -> AsyncIterator[Make]:
        """Makes volumes for the case, deleted after it. Named before `fresh`, they outlive the case's sandboxes."""
        volumes, made = AsyncVolumes(provider), []

        async def create(**options: Any) -> VolumeInfo:
            made.append(await volumes.create(f"case-{os.getpid()}-{next(_numbers)}", **options))
            return made[-1]

        yield create
        left = {info.name for info in await volumes.list()}
        for info in made:
            if info.name in left:
                await volumes.delete(info.name)

    async def test_what_was_made_is_listed_until_it_is_deleted(self, provider: Provider, make: Make) -> None:
        """A volume is found by its name and gone after delete."""
        volumes, made = AsyncVolumes(provider), await make()
        assert (await volumes.get(made.name)).name == made.name
        assert made.name in [info.name for info in await volumes.list()]
        assert (made.temporary, made.sandboxes) == (False, ())
        await volumes.delete(made.name)
        assert made.name not in [info.name for info in await volumes.list()]
        for again in (volumes.get, volumes.delete):
            with pytest.raises(VolumeNotFound):
                await again(made.name)

    async def test_a_taken_name_is_a_conflict_and_get_can_create(self, provider: Provider, make: Make) -> None:
        """Create never hands out somebody else's files; get(create=True) does, and makes them if need be."""
        volumes, made = AsyncVolumes(provider), await make()
        with pytest.raises(Conflict):
            await volumes.create(made.name)
        assert (await volumes.get(made.name, create=True)).created_at == made.created_at
        await volumes.delete(made.name)
        assert (await volumes.get(made.name, create=True)).created_at != made.created_at

    async def test_files_outlive_their_sandbox_and_ids_are_the_same(self, make: Make, fresh: Fresh) -> None:
        """What a user or root wrote is theirs in the next sandbox too."""
        made = await make()
        first = await fresh(volumes={"/data": made.name})
        await first.exec("echo kept > /data/mine", check=True)
        await first.exec("echo kept > /data/roots; chmod 600 /data/roots", user="root", check=True)
        await first.destroy()
        second = await fresh(volumes={"/data": made})
        assert (await second.exec("cat /data/mine; stat -c %u /data/roots; cat /data/roots")).stdout == "kept\n0\n"
        await second.exec("echo more >> /data/mine", check=True)

    async def test_several_sandboxes_share_it_at_once(self, make: Make, fresh: Fresh) -> None:
        """What one writes the other reads, at another path, as the same user."""
        made = await make()
        first = await fresh(volumes={"/data": made.name})
        second = await fresh(volumes=[VolumeMount(name=made.name, path="/mnt/elsewhere")])
        await first.files.write("/data/f", b"1")
        await second.exec("echo 2 >> /mnt/elsewhere/f", check=True)
        assert await first.files.read("/data/f") == b"12\n"
        assert {mount.path for mount in (await second.info()).volumes} == {"/mnt/elsewhere"}

    async def test_read_only_is_read_only(self, make: Make, fresh: Fresh) -> None:
        """Not even the sandbox's root can write."""
        made = await make()
        writer = await fresh(volumes={"/data": made.name})
        reader = await fresh(volumes=[VolumeMount(name=made.name, path="/data", read_only=True)])
        await writer.files.write("/data/f", b"1")
        assert await reader.files.read("/data/f") == b"1"
        with pytest.raises(ReadOnly):
            await reader.files.write("/data/f", b"2")
        assert not (await reader.exec("echo 2 > /data/f", user="root")).ok

    async def test_a_subpath_shows_that_directory_alone(self, make: Make, fresh: Fresh) -> None:
        """A missing directory is made for a mount that may write, and refused for one that may not."""
        made = await make()
        with pytest.raises(FileMissing):
            await fresh(volumes=[VolumeMount(name=made.name, path="/data", subpath="a/b", read_only=True)])
        part = await fresh(volumes=[VolumeMount(name=made.name, path="/data", subpath="a/b")])
        await part.files.write("/data/f", b"1")
        whole = await fresh(volumes={"/data": made.name})
        assert await whole.files.read("/data/a/b/f") == b"1"
        await whole.files.write("/data/secret", b"")
        assert [info.name for info in await part.files.list("/data")] == ["f"]

    async def test_what_is_not_there_or_makes_no_sense_is_refused(
        self, provider: Provider, make: Make, attempt: Fresh
    ) -> None:
        """No sandbox is left of a create whose volumes cannot be had."""
        made, before = await make(), {info.id for info in await provider.list()}
        with pytest.raises(VolumeNotFound):
            await attempt(volumes={"/data": "no-such-volume"})
        with pytest.raises(VolumeNotFound):
            await AsyncVolumes(provider).mount_existing("no-such-volume", "/data")
        for wrong in ("/", "relative", "/a/../b", "/proc/x", "/dev", "/sys"):
            with pytest.raises(InvalidArgument):
                await attempt(volumes={wrong: made.name})
        for mount in (VolumeMount(name=made.name, path="/data", subpath="../x"), VolumeMount(name="../x", path="/d")):
            with pytest.raises(InvalidArgument):
                await attempt(volumes=[mount])
        with pytest.raises(InvalidArgument):
            await attempt(volumes=[VolumeMount(name=made.name, path="/data")] * 2)
        assert {info.id for info in await provider.list()} == before

    async def test_delete_is_refused_while_a_sandbox_has_it(self, provider: Provider, make: Make, fresh: Fresh) -> None:
        """A volume is never taken away from under a sandbox."""
        volumes, made = AsyncVolumes(provider), await make()
        sandbox = await fresh(volumes={"/data": made.name})
        assert (await volumes.get(made.name)).sandboxes == (sandbox.id,)
        with pytest.raises(Conflict):
            await volumes.delete(made.name)
        await sandbox.files.write("/data/f", b"1")
        await sandbox.destroy()
        await volumes.delete(made.name)

    async def test_a_temporary_one_goes_with_its_last_sandbox(
        self, provider: Provider, make: Make, fresh: Fresh
    ) -> None:
        """A temporary volume goes with its last sandbox, and not before."""
        volumes, made = AsyncVolumes(provider), await make(temporary=True)
        first, second = await fresh(volumes={"/data": made.name}), await fresh(volumes={"/data": made.name})
        await first.destroy()
        assert (await volumes.get(made.name)).sandboxes == (second.id,)
        await second.destroy()
        with pytest.raises(VolumeNotFound):
            await volumes.get(made.name)

    async def test_a_missing_one_is_made_by_create_where_its_mount_says_so(
        self, provider: Provider, fresh: Fresh
    ) -> None:
        """`persistent` makes it; one that is not persistent goes with its sandbox; `mount_existing` makes none."""
        volumes, name = AsyncVolumes(provider), f"case-{os.getpid()}-{next(_numbers)}"
        keeps, goes = f"{name}-keeps", f"{name}-goes"
        mounts = [
            VolumeMount(name=keeps, path="/keeps", persistent=True),
            VolumeMount(name=goes, path="/goes", persistent=False),
        ]
        with pytest.raises(VolumeNotFound):
            await fresh(volumes=[VolumeMount(name=keeps, path="/keeps", mount_existing=True)])
        sandbox = await fresh(volumes=mounts)
        try:
            await sandbox.files.write("/keeps/f", b"kept")
            assert [(await volumes.get(each)).temporary for each in (keeps, goes)] == [False, True]
            second = await fresh(volumes=mounts)
            await sandbox.destroy()
            await volumes.get(goes)
            await second.destroy()
            with pytest.raises(VolumeNotFound):
                await volumes.get(goes)
            third = await fresh(volumes=[VolumeMount(name=keeps, path="/keeps", mount_existing=True)])
            assert await third.files.read("/keeps/f") == b"kept"
            with pytest.raises(Conflict):
                await fresh(volumes=[VolumeMount(name=keeps, path="/keeps", persistent=False)])
            await third.destroy()
        finally:
            await volumes.delete(keeps)

    async def test_a_size_beyond_the_storage_is_refused(self, provider: Provider, fresh: Fresh) -> None:
        """And so is a sandbox that asks for it; then neither is there."""
        volumes, name = AsyncVolumes(provider), f"case-{os.getpid()}-{next(_numbers)}"
        with pytest.raises((QuotaExceeded, Unsupported)):
            await fresh(volumes=[VolumeMount(name=name, path="/data", size="900TB", persistent=True)])
        with pytest.raises((QuotaExceeded, Unsupported)):
            await volumes.create(name, size="900TB")
        with pytest.raises(VolumeNotFound):
            await volumes.get(name)

    async def test_a_size_is_enforced_or_refused(self, provider: Provider, make: Make, fresh: Fresh) -> None:
        """A write beyond it fails inside and is typed outside; the sandbox keeps running."""
        try:
            made = await make(size="20MB")
        except Unsupported as error:
            not_offered(str(error))
        sandbox = await fresh(volumes={"/data": made.name})
        assert not (await sandbox.exec("head -c 40000000 /dev/zero > /data/big")).ok
        with pytest.raises(DiskFull):
            await sandbox.files.write("/data/more", b"x" * 10_000_000)
        assert (await sandbox.exec("rm /data/big && echo fine > /data/f && cat /data/f")).stdout == "fine\n"
        with pytest.raises(Conflict):
            await AsyncVolumes(provider).get(made.name, create=True, size="30MB")
