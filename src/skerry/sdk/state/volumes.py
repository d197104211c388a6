"""Volumes: directories that sandboxes share and that outlive them."""

from __future__ import annotations

from skerry.core import (
    Conflict,
    Provider,
    Unsupported,
    VolumeInfo,
    VolumeMount,
    VolumeNotFound,
    check_mounts,
    check_volume_name,
    parse_size,
    registry,
)
from skerry.core import Volumes as VolumeProvider
from skerry.sdk.options import check_encrypted


class AsyncVolumes:
    """The volumes of a provider. A sandbox gets them by `create(volumes={"/data": "name"})`."""

    def __init__(self, provider: str | Provider | None = None) -> None:
        chosen = registry.provider(provider)
        if not isinstance(chosen, VolumeProvider):
            raise Unsupported(f"the provider {chosen.name!r} has no volumes", option="volumes")
        self._provider = chosen

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._provider.name}>"

    async def create(
        self, name: str, *, size: int | str | None = None, temporary: bool = False, encrypted: bool = False
    ) -> VolumeInfo:
        """Make an empty volume that belongs to the sandboxes' user.

        `size` is the most it may hold. A `temporary` volume is deleted with the last sandbox that has it.

        The files of an `encrypted` one are encrypted on disk.

        Raises Conflict for a taken name, Unsupported for a size that cannot be enforced or an encryption that cannot be
        had, InvalidArgument, DiskFull, DiskLocked.
        """
        check_encrypted(self._provider, encrypted)
        most = None if size is None else parse_size(size, "size")
        return await self._provider.create_volume(
            check_volume_name(name), size=most, temporary=temporary, encrypted=encrypted
        )

    async def get(self, name: str, *, create: bool = False, size: int | str | None = None) -> VolumeInfo:
        """The volume with that name; with `create`, a missing one is made with that `size`.

        Raises VolumeNotFound, Conflict if it exists with another size, and as `create`.
        """
        most = None if size is None else parse_size(size, "size")
        while True:
            try:
                found = await self._provider.get_volume(check_volume_name(name))
            except VolumeNotFound:
                if not create:
                    raise
            else:
                if most is not None and found.size != most:
                    raise Conflict(f"the volume {name!r} has another size: {found.size}", hint="leave the size out")
                return found
            try:
                return await self._provider.create_volume(name, size=most, temporary=False)
            except Conflict:
                continue  # somebody else has just made it

    async def list(self) -> list[VolumeInfo]:
        """All volumes, by name."""
        return list(await self._provider.list_volumes())

    async def delete(self, name: str) -> None:
        """Remove a volume and everything in it.

        Raises VolumeNotFound, Conflict while a sandbox has it, running or not.
        """
        await self._provider.delete_volume(check_volume_name(name))

    async def mount_existing(self, name: str, path: str, *, subpath: str = "", read_only: bool = False) -> VolumeMount:
        """For `create(volumes=[…])`: an existing volume, or a directory of it. Raises VolumeNotFound."""
        (mount,) = check_mounts([VolumeMount(name=name, path=path, subpath=subpath, read_only=read_only)])
        await self._provider.get_volume(mount.name)
        return mount
