"""The sandboxes of one SKERRY_HOME: makes the parts, joins them, and passes calls on.

Calls block; any number of threads and processes may make them. `sandbox/changes.py` has what every change is made of;
`sandbox/sweep.py` says what becomes of a sandbox that nobody holds.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.core import Event, Room, SandboxInfo, SandboxNotFound, SandboxSpec, State, Usage, home
from skerry.providers.local.home import Home
from skerry.providers.local.host import enough_files, require_root
from skerry.providers.local.launch.first_connections import Connections
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.limits.usage import Meter
from skerry.providers.local.sandbox import record as records
from skerry.providers.local.sandbox.archive import Archives
from skerry.providers.local.sandbox.capture import Capture
from skerry.providers.local.sandbox.changes import Changes
from skerry.providers.local.sandbox.create import Creation
from skerry.providers.local.sandbox.lifecycle import Lifecycle
from skerry.providers.local.sandbox.lookup import Lookup
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.sandbox.restore import Restore
from skerry.providers.local.sandbox.settings import Settings
from skerry.providers.local.sandbox.stop import Stop
from skerry.providers.local.sandbox.sweep import Sweep
from skerry.providers.local.storage.choose import Storage
from skerry.providers.local.storage.layers import Templates
from skerry.providers.local.storage.snapshots import Snapshots
from skerry.providers.local.storage.volumes import Volumes

if TYPE_CHECKING:
    from skerry.providers.local.storage.export import Exports


class Engine:
    """The parts of the local provider, and its verbs."""

    def __init__(self, directory: Path | None = None) -> None:
        require_root()
        # Every change first settles what is due, and sweeping makes changes: three parts get the sweep as a function.
        self._home = Home(directory or home(), first_sweep=lambda: self._sweep.sweep_all())
        self.store = self._home.store
        self.cgroups = Cgroups.detect()
        self.connections = Connections()
        self._meter = Meter(self._home, self.cgroups)
        self.snapshots = Snapshots(self._home)
        self.volumes = Volumes(self._home, settle=lambda sandbox_id: self._sweep.sweep_one(sandbox_id))
        self.changes = Changes(
            self._home,
            self.cgroups,
            self.connections,
            self._meter,
            self.volumes,
            self.snapshots,
            settle=lambda sandbox_id: self._sweep.sweep_locked(sandbox_id),
        )
        stop = Stop(self.changes)
        self.templates = Templates(self.changes)
        self.capture = Capture(self.changes, self.snapshots)
        self.restore = Restore(self.changes, self.snapshots)
        self.archives = Archives(self.changes, stop)
        self.lifecycle = Lifecycle(self.changes, stop, self.archives, self.capture, self.templates)
        self.creation = Creation(self.changes, self.templates, self.snapshots, self.volumes)
        self._sweep = Sweep(
            self.changes,
            self.archives,
            {
                **stop.recoveries(),
                **self.lifecycle.recoveries(),
                **self.capture.recoveries(),
                **self.restore.recoveries(),
                **self.archives.recoveries(),
            },
            storage_sweeps={
                "snapshots that nobody needs": self.snapshots.sweep,
                "volumes that nobody needs": self.volumes.sweep,
                "layers that nobody needs": self.templates.sweep,
            },
        )
        self.lookup = Lookup(self._home, sweep_one=self._sweep.sweep_one)
        self.settings = Settings(self.changes, self.lookup)

    @cached_property
    def exports(self) -> Exports:
        """Imported when it is first used: most processes export nothing."""
        from skerry.providers.local.storage.export import Exports

        return Exports(self._home, self.capture, self.snapshots, self.creation, self.templates, self.volumes)

    @property
    def storage(self) -> Storage:
        """Where the files of the sandboxes are. Raises ProviderUnavailable, Corrupted."""
        return self._home.storage

    def prepare(self) -> None:
        """Make the directories, and sweep what dead processes left; does so once in each process."""
        self._home.prepare()

    def create(self, spec: SandboxSpec) -> Record:
        """Make a sandbox and wait for its agent. A failed call leaves nothing behind."""
        with enough_files():
            return self.creation.create(spec)

    # -- look

    def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound, Corrupted."""
        return self.lookup.current(sandbox_id).info()

    def find(self, id_or_name: str) -> SandboxInfo:
        """Raises SandboxNotFound, Conflict, Corrupted."""
        self.prepare()
        return self.get(self.store.resolve(id_or_name))

    def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox, the oldest first."""
        return self.lookup.list()

    def events(self, sandbox_id: str, since: int) -> Sequence[Event]:
        """Raises SandboxNotFound, Corrupted."""
        self.store.read(sandbox_id)
        return records.read_events(self.store.directory(sandbox_id), sandbox_id, since)

    def usage(self, sandbox_id: str) -> Usage:
        """Raises SandboxNotFound, SandboxStopped, SandboxFailed."""
        return self._meter.usage(self.lookup.running(sandbox_id))

    def room(self) -> Room:
        """What all sandboxes use together. Raises ProviderUnavailable, Corrupted."""
        self.prepare()
        inside, outside = shutil.disk_usage(self.storage.root), shutil.disk_usage(self.storage.home)
        return Room(
            memory_used=self.cgroups.memory_used(),
            disk_size=inside.total,
            disk_used=inside.used,
            disk_free=min(inside.free, outside.free),  # a pool's file grows on the disk of its home
        )

    # -- end

    def destroy(self, sandbox_id: str) -> None:
        """End a sandbox and remove everything of it; one that does not exist is not an error."""
        self.prepare()
        try:
            self.hasten(sandbox_id)
            with self.store.lock(sandbox_id):
                self.changes.tear_down(self.store.read_or_guess(sandbox_id))
        except SandboxNotFound:
            return

    def hasten(self, sandbox_id: str) -> None:
        """Kill a sandbox that is being stopped: a caller that waits for its processes need not wait any more.

        Raises SandboxNotFound.
        """
        before = self.store.read_or_guess(sandbox_id)
        if before.state is State.STOPPING and before.init is not None:
            before.init.signal_kill()

    def sweep(self) -> Sequence[str]:
        """Remove what nobody owns any more, and log what cannot be removed now; the ids of the removed sandboxes.

        Raises ProviderUnavailable, Corrupted, DiskFull, InvalidArgument where the storage cannot be used.
        """
        return self._sweep.sweep_all()
