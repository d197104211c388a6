"""The snapshots and volumes of projects: found for an actor, listed, and noted."""

from __future__ import annotations

from collections.abc import Sequence
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
from skerry.server.store import Belonging, Project, Store


@dataclass(frozen=True, slots=True)
class LocatedSnapshot:
    id: str
    project: Project | None
    info: SnapshotInfo
    """With the names that users know."""


@dataclass(frozen=True, slots=True)
class LocatedVolume:
    inner: str
    """Its name at the provider."""
    project: Project | None
    info: VolumeInfo
    """With the names that users know."""


class Holdings:
    def __init__(self, provider: Provider, store: Store) -> None:
        self._provider, self._store = provider, store

    @property
    def snapshots(self) -> Snapshots:
        """Raises Unsupported."""
        if not isinstance(self._provider, Snapshots):
            raise Unsupported(f"the provider {self._provider.name!r} has no snapshots", option="snapshots")
        return self._provider

    @property
    def volumes(self) -> Volumes:
        """Raises Unsupported."""
        if not isinstance(self._provider, Volumes):
            raise Unsupported(f"the provider {self._provider.name!r} has no volumes", option="volumes")
        return self._provider

    async def locate_snapshot(
        self, actor: Actor, asked: str, *, within: str | None = None
    ) -> tuple[Subject, LocatedSnapshot | None]:
        """The snapshot with that id, or with that name in one of the actor's `choices`.

        Raises Conflict if `within` names several projects.
        """
        info = None
        if is_snapshot_id(asked):
            info = await self._snapshot(asked)
        else:
            for project in choices(self._store, actor, within):
                name = _inner(project, asked)
                if name is not None and (info := await self._snapshot(name)):
                    break
        if info is None:
            return Subject(on="snapshot", asked=asked, exists=False), None
        project = self.project_of_snapshot(info)
        located = LocatedSnapshot(info.id, project, names.outer_snapshot(project, info))
        return Subject(on="snapshot", asked=asked, project=project), located

    def project_of_snapshot(self, info: SnapshotInfo) -> Project | None:
        """The project noted when it was taken; else its sandbox's; else, with a new database, by its name."""
        for item in (
            self._store.belongings.get("snapshot", info.id),
            self._store.belongings.get("sandbox", info.sandbox_id),
        ):
            if item is not None:
                return None if item.project_id is None else self._store.projects.get(item.project_id)
        return self._by_name(info.name)

    async def locate_volume(
        self, actor: Actor, asked: str, *, within: str | None = None
    ) -> tuple[Subject, LocatedVolume | None]:
        """The volume with that name in one of the actor's `choices`.

        Raises Conflict if `within` names several projects.
        """
        for project in choices(self._store, actor, within):
            name = _inner(project, asked)
            if name is not None and (info := await self._volume(name)):
                owner = self.project_of_volume(info)
                located = LocatedVolume(info.name, owner, names.outer_volume(owner, info))
                return Subject(on="volume", asked=asked, project=owner), located
        return Subject(on="volume", asked=asked, exists=False), None

    def project_of_volume(self, info: VolumeInfo) -> Project | None:
        return self._by_name(info.name)

    async def note_snapshot(self, project: Project | None, info: SnapshotInfo) -> None:
        """Note a snapshot that has just been taken."""
        item = Belonging(
            kind="snapshot",
            id=info.id,
            project_id=None if project is None else project.id,
            name=names.outer(project, info.name),
        )
        await self._store.belongings.put([item])

    async def list_snapshots(
        self, projects: Sequence[Project], *, unclaimed: bool = False
    ) -> list[tuple[Project | None, SnapshotInfo]]:
        """The snapshots of some projects, and those of none, newest first."""
        wanted = {project.id for project in projects}
        found = []
        for info in await self.snapshots.list_snapshots():
            project = self.project_of_snapshot(info)
            if (unclaimed and project is None) or (project is not None and project.id in wanted):
                found.append((project, names.outer_snapshot(project, info)))
        return found

    async def list_volumes(
        self, projects: Sequence[Project], *, unclaimed: bool = False
    ) -> list[tuple[Project | None, VolumeInfo]]:
        """The volumes of some projects, and those of none, by name."""
        wanted = {project.id for project in projects}
        found = []
        for info in await self.volumes.list_volumes():
            project = self.project_of_volume(info)
            if (unclaimed and project is None) or (project is not None and project.id in wanted):
                found.append((project, names.outer_volume(project, info)))
        return found

    async def _snapshot(self, id_or_name: str) -> SnapshotInfo | None:
        try:
            return await self.snapshots.find_snapshot(id_or_name)
        except SnapshotNotFound:
            return None

    async def _volume(self, name: str) -> VolumeInfo | None:
        try:
            return await self.volumes.get_volume(name)
        except VolumeNotFound:
            return None

    def _by_name(self, name: str | None) -> Project | None:
        slug = None if name is None else names.slug_of(name)
        return None if slug is None else self._store.projects.by_slug(slug)


def _inner(project: Project | None, name: str) -> str | None:
    """The name at the provider; None if it is not a valid name."""
    if project is None:
        return name
    try:
        return names.inner(project, name)
    except InvalidArgument:
        return None
