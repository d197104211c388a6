"""The snapshots and volumes of projects: found for an actor, listed, and noted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.core import (
    InvalidArgument,
    Provider,
    SnapshotInfo,
    SnapshotNotFound,
    Snapshots,
    Unsupported,
    VolumeInfo,
    VolumeNotFound,
    Volumes,
    is_snapshot_id,
)
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.projects import names
from skerry.server.projects.projects import choices
from skerry.server.projects.providers import Owned, Providers
from skerry.server.store import Belonging, Project, Store


@dataclass(frozen=True, slots=True)
class LocatedSnapshot:
    id: str
    project: Project | None
    provider: str
    info: SnapshotInfo
    """With the names that users know."""


@dataclass(frozen=True, slots=True)
class LocatedVolume:
    inner: str
    """Its name at the provider."""
    project: Project | None
    provider: str
    info: VolumeInfo
    """With the names that users know."""


class Holdings:
    """The snapshots and volumes of all providers."""

    def __init__(self, providers: Providers, store: Store) -> None:
        self._providers, self._store = providers, store

    def snapshots(self, item: Owned) -> Snapshots:
        """What takes and has the snapshots of a sandbox, or has this one. Raises Unsupported."""
        return _snapshots(self._providers.of(item))

    def volumes(self, item: Owned | None = None) -> Volumes:
        """What has a volume; None: what makes new ones. Raises Unsupported."""
        return _volumes(self._providers.default if item is None else self._providers.of(item))

    def _with_snapshots(self) -> Mapping[str, Snapshots]:
        """By the names of the providers. Raises Unsupported if none has snapshots."""
        found = {name: provider for name, provider in self._providers.items() if isinstance(provider, Snapshots)}
        return found or {self._providers.default.name: _snapshots(self._providers.default)}

    def _with_volumes(self) -> Mapping[str, Volumes]:
        """By the names of the providers. Raises Unsupported if none has volumes."""
        found = {name: provider for name, provider in self._providers.items() if isinstance(provider, Volumes)}
        return found or {self._providers.default.name: _volumes(self._providers.default)}

    async def locate_snapshot(
        self, actor: Actor, asked: str, *, within: str | None = None
    ) -> tuple[Subject, LocatedSnapshot | None]:
        """The snapshot with that id, or with that name in one of the actor's `choices`.

        Raises Conflict if `within` names several projects.
        """
        found = None
        if is_snapshot_id(asked):
            found = await self._snapshot(asked)
        else:
            for project in choices(self._store.accounts, actor, within):
                name = _inner(project, asked)
                if name is not None and (found := await self._snapshot(name)):
                    break
        if found is None:
            return Subject(on="snapshot", asked=asked, exists=False), None
        provider, info = found
        project = await self.project_of_snapshot(info)
        located = LocatedSnapshot(info.id, project, provider, names.outer_snapshot(project, info))
        return Subject(on="snapshot", asked=asked, project=project), located

    async def project_of_snapshot(self, info: SnapshotInfo) -> Project | None:
        """The project noted when it was taken; else its sandbox's; else, with a new database, by its name."""
        accounts, ownership = self._store.accounts, self._store.ownership
        noted = accounts.owned("snapshot", info.id) or accounts.owned("sandbox", info.sandbox_id)
        if noted is None:
            noted = await ownership.get("snapshot", info.id) or await ownership.get("sandbox", info.sandbox_id)
        if noted is not None:
            return accounts.project(noted.project_id)
        return self._by_name(info.name)

    async def locate_volume(
        self, actor: Actor, asked: str, *, within: str | None = None
    ) -> tuple[Subject, LocatedVolume | None]:
        """The volume with that name in one of the actor's `choices`.

        Raises Conflict if `within` names several projects.
        """
        for project in choices(self._store.accounts, actor, within):
            name = _inner(project, asked)
            if name is not None and (found := await self._volume(name)):
                provider, info = found
                owner = self.project_of_volume(info)
                located = LocatedVolume(info.name, owner, provider, names.outer_volume(owner, info))
                return Subject(on="volume", asked=asked, project=owner), located
        return Subject(on="volume", asked=asked, exists=False), None

    def project_of_volume(self, info: VolumeInfo) -> Project | None:
        return self._by_name(info.name)

    async def note_snapshot(self, project: Project | None, provider: str, info: SnapshotInfo) -> None:
        """Note a snapshot that has just been taken."""
        item = Belonging(
            kind="snapshot",
            id=info.id,
            provider=provider,
            project_id=None if project is None else project.id,
            name=names.outer(project, info.name),
        )
        await self._store.ownership.put([item])

    async def list_snapshots(
        self, projects: Sequence[Project], *, unclaimed: bool = False
    ) -> list[tuple[Project | None, SnapshotInfo]]:
        """The snapshots of some projects, and those of none, newest first."""
        wanted = {project.id for project in projects}
        found = []
        listed = [info for provider in self._with_snapshots().values() for info in await provider.list_snapshots()]
        for info in listed if len(self._providers) == 1 else sorted(listed, key=_taken_at, reverse=True):
            project = await self.project_of_snapshot(info)
            if (unclaimed and project is None) or (project is not None and project.id in wanted):
                found.append((project, names.outer_snapshot(project, info)))
        return found

    async def list_volumes(
        self, projects: Sequence[Project], *, unclaimed: bool = False
    ) -> list[tuple[Project | None, VolumeInfo]]:
        """The volumes of some projects, and those of none, by name."""
        wanted = {project.id for project in projects}
        found = []
        listed = [info for provider in self._with_volumes().values() for info in await provider.list_volumes()]
        for info in listed if len(self._providers) == 1 else sorted(listed, key=lambda info: info.name):
            project = self.project_of_volume(info)
            if (unclaimed and project is None) or (project is not None and project.id in wanted):
                found.append((project, names.outer_volume(project, info)))
        return found

    async def _snapshot(self, id_or_name: str) -> tuple[str, SnapshotInfo] | None:
        """With the name of the provider that has it."""
        for name, provider in self._with_snapshots().items():
            with contextlib.suppress(SnapshotNotFound):
                return name, await provider.find_snapshot(id_or_name)
        return None

    async def _volume(self, name: str) -> tuple[str, VolumeInfo] | None:
        """With the name of the provider that has it."""
        for provider_name, provider in self._with_volumes().items():
            with contextlib.suppress(VolumeNotFound):
                return provider_name, await provider.get_volume(name)
        return None

    def _by_name(self, name: str | None) -> Project | None:
        slug = None if name is None else names.slug_of(name)
        return None if slug is None else self._store.accounts.project_with_slug(slug)


def _snapshots(provider: Provider) -> Snapshots:
    """Raises Unsupported."""
    if not isinstance(provider, Snapshots):
        raise Unsupported(f"the provider {provider.name!r} has no snapshots", option="snapshots")
    return provider


def _volumes(provider: Provider) -> Volumes:
    """Raises Unsupported."""
    if not isinstance(provider, Volumes):
        raise Unsupported(f"the provider {provider.name!r} has no volumes", option="volumes")
    return provider


def _taken_at(info: SnapshotInfo) -> tuple[float, str]:
    return info.created_at, info.id


def _inner(project: Project | None, name: str) -> str | None:
    """The name at the provider; None if it is not a valid name."""
    if project is None:
        return name
    try:
        return names.inner(project, name)
    except InvalidArgument:
        return None
