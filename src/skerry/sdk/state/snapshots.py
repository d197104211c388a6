"""Snapshots: the files and variables of a sandbox as they were at a moment."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from skerry._model import Model
from skerry.core import (
    NAME,
    RESERVED_HINT,
    InvalidArgument,
    Provider,
    SandboxInfo,
    SnapshotInfo,
    Unsupported,
    check_shown,
    is_snapshot_id,
    looks_like_id,
    registry,
)
from skerry.core import Snapshots as SnapshotProvider
from skerry.sdk.state.export import KeyOptions, StateProgress, StateTarget, export, portable

LogCallback = Callable[[str], object]
"""Gets a short line about each step."""
SnapshotName = str | SnapshotInfo
"""A snapshot, or its id or name."""
MAX_DESCRIPTION = 4096


class SnapshotNode(Model):
    """A snapshot in the tree of parents."""

    snapshot: SnapshotInfo
    """The snapshot."""
    children: tuple[SnapshotNode, ...]
    """Oldest first."""


class AsyncSnapshots:
    """The snapshots of all sandboxes of a provider, those of sandboxes that are gone too.

    They are taken by `sandbox.snapshots.create`; `create(snapshot=…)` makes a sandbox from one.
    """

    def __init__(self, provider: str | Provider | None = None) -> None:
        self._chosen = registry.provider(provider)
        self._provider = require_snapshots(self._chosen)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._chosen.name}>"

    async def list(self) -> list[SnapshotInfo]:
        """Newest first."""
        return list(await self._provider.list_snapshots())

    async def get(self, snapshot: SnapshotName) -> SnapshotInfo:
        """The snapshot with that id or name. Raises SnapshotNotFound."""
        return await find(self._provider, snapshot)

    async def delete(self, snapshot: SnapshotName) -> None:
        """Remove a snapshot; those taken after it get its parent. Sandboxes made from it stay as they are.

        Raises SnapshotNotFound.
        """
        await self._provider.delete_snapshot(await _deletable(self._provider, snapshot))

    async def export(
        self,
        snapshot: SnapshotName,
        target: StateTarget | None = None,
        *,
        key: KeyOptions | None = None,
        on_progress: StateProgress | None = None,
    ) -> bytes | None:
        """Write a snapshot to a file; `create(import_state=…)` makes a sandbox from it anywhere. See `export_state`."""
        return await export_snapshot(self._chosen, snapshot, target, key, on_progress)

    async def tree(self) -> tuple[SnapshotNode, ...]:
        """The snapshots without a parent, each with those taken after it. Oldest first."""
        return snapshot_trees(await self._provider.list_snapshots())


class AsyncSandboxSnapshots:
    """The snapshots of one sandbox: `sandbox.snapshots`."""

    def __init__(
        self, provider: Provider, sandbox_id: str, on_restored: Callable[[SandboxInfo], Awaitable[None]]
    ) -> None:
        self._provider, self._sandbox_id, self._on_restored = provider, sandbox_id, on_restored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sandbox_id}>"

    async def create(
        self, name: str | None = None, *, description: str = "", on_log: LogCallback | None = None
    ) -> SnapshotInfo:
        """Keep its files and variables as they are now; secrets and volumes are not in it.

        A running sandbox stands still for that moment and continues. `on_log` gets lines about the progress.

        Raises:
            Conflict: the name is taken, or the sandbox is archived.
            DiskFull: there is no room; nothing is left of it.
            Unsupported: the provider has no snapshots.
            InvalidArgument, SandboxNotFound.
        """
        chosen = require_snapshots(self._provider)
        check_snapshot_name(name)
        check_description(description)
        tell, started = on_log or _silent, time.perf_counter()
        tell(f"taking a snapshot of {self._sandbox_id}")
        made = await chosen.create_snapshot(self._sandbox_id, name=name, description=description)
        size = "" if made.size is None else f", {made.size} bytes"
        tell(f"{made.id} is taken ({made.kind}{size}) after {time.perf_counter() - started:.3f} s")
        return made

    async def list(self) -> list[SnapshotInfo]:
        """The snapshots of this sandbox, newest first."""
        return list(await require_snapshots(self._provider).list_snapshots(self._sandbox_id))

    async def get(self, snapshot: SnapshotName) -> SnapshotInfo:
        """The snapshot with that id or name, of any sandbox. Raises SnapshotNotFound."""
        return await find(require_snapshots(self._provider), snapshot)

    async def restore(self, snapshot: SnapshotName, *, on_log: LogCallback | None = None) -> SandboxInfo:
        """Bring this sandbox, under the same id, to exactly the files and variables of a snapshot.

        All its processes end. It runs afterwards if it ran; its volumes, limits, name and secrets stay as they are.

        Raises:
            SnapshotNotFound, SandboxNotFound.
            Conflict: the snapshot is of another template, or the sandbox is archived.
            QuotaExceeded: the snapshot holds more than the disk limit.
            DiskFull: there is no room; the sandbox stays as it was.
        """
        chosen = require_snapshots(self._provider)
        tell, started = on_log or _silent, time.perf_counter()
        found = await find(chosen, snapshot)
        tell(f"restoring {self._sandbox_id} to {found.id}")
        info = await chosen.restore_snapshot(self._sandbox_id, found.id)
        await self._on_restored(info)
        tell(f"{self._sandbox_id} is {info.state} after {time.perf_counter() - started:.3f} s")
        return info

    async def delete(self, snapshot: SnapshotName) -> None:
        """Remove a snapshot; those taken after it get its parent. Sandboxes made from it stay as they are.

        Raises SnapshotNotFound.
        """
        chosen = require_snapshots(self._provider)
        await chosen.delete_snapshot(await _deletable(chosen, snapshot))

    async def export(
        self,
        snapshot: SnapshotName,
        target: StateTarget | None = None,
        *,
        key: KeyOptions | None = None,
        on_progress: StateProgress | None = None,
    ) -> bytes | None:
        """Write a snapshot to a file; `create(import_state=…)` makes a sandbox from it anywhere. See `export_state`."""
        return await export_snapshot(self._provider, snapshot, target, key, on_progress)

    async def tree(self) -> tuple[SnapshotNode, ...]:
        """The snapshots of this sandbox, each below the one before it. Oldest first."""
        return snapshot_trees(await self.list())


def require_snapshots(provider: Provider, option: str = "snapshots") -> SnapshotProvider:
    """Raises Unsupported."""
    if not isinstance(provider, SnapshotProvider):
        raise Unsupported(f"the provider {provider.name!r} has no snapshots", option=option)
    return provider


async def find(provider: SnapshotProvider, snapshot: SnapshotName) -> SnapshotInfo:
    """Raises SnapshotNotFound, InvalidArgument for what cannot be a snapshot."""
    return await provider.find_snapshot(_key(snapshot))


async def export_snapshot(
    provider: Provider,
    snapshot: SnapshotName,
    target: StateTarget | None,
    key: KeyOptions | None,
    on_progress: StateProgress | None,
) -> bytes | None:
    """Raises SnapshotNotFound, and as `export_state`."""
    portable(provider, "export")
    found = await find(require_snapshots(provider), snapshot)
    return (await export(provider, found.id, target, key, on_progress))[1]


async def _deletable(provider: SnapshotProvider, snapshot: SnapshotName) -> str:
    """An id is taken as it is: what is left of a damaged snapshot can be removed too."""
    key = _key(snapshot)
    return key if is_snapshot_id(key) else (await provider.find_snapshot(key)).id


def _key(snapshot: object) -> str:
    key = snapshot.id if isinstance(snapshot, SnapshotInfo) else snapshot
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidArgument(f"{snapshot!r} is not a snapshot", hint="give its id, its name, or a SnapshotInfo")
    return key


def check_snapshot_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not NAME.fullmatch(name) or looks_like_id(name)):
        hint = f"use up to 63 of a-z 0-9 . _ - and begin with a letter or digit, but not with {RESERVED_HINT}"
        raise InvalidArgument(f"{name!r} is not a name for a snapshot", hint=hint)


def check_description(text: object) -> None:
    if not isinstance(text, str) or "\0" in text or len(text) > MAX_DESCRIPTION:
        raise InvalidArgument(f"a description must be a text of at most {MAX_DESCRIPTION} characters")
    check_shown(text, "a description")


def snapshot_trees(snapshots: Iterable[SnapshotInfo]) -> tuple[SnapshotNode, ...]:
    """The tree of these; one whose parent is not among them is a root."""
    found = sorted(snapshots, key=lambda info: (info.created_at, info.id))
    ids = {info.id for info in found}
    below: dict[str | None, list[SnapshotInfo]] = {}
    for info in found:
        below.setdefault(info.parent if info.parent in ids else None, []).append(info)
    nodes: dict[str, SnapshotNode] = {}
    # A child is always younger than its parent: from the youngest on, all children are known.
    for info in reversed(found):
        children = tuple(nodes[child.id] for child in below.get(info.id, ()) if child.id in nodes)
        nodes[info.id] = SnapshotNode(snapshot=info, children=children)
    return tuple(nodes[info.id] for info in below.get(None, ()))


def _silent(line: str) -> None:
    pass
