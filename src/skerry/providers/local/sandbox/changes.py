"""What every change of a sandbox is made of: its lock, its record, its trees, its processes.

A caller holds the sandbox's lock for the whole of a change. It notes a change before it begins (`begin`) and when it is
complete (`finish`); if the process dies in between, the next command finishes or undoes the change: see `sweep.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from skerry.core import Corrupted, SkerryError, State, transitions
from skerry.providers.local.home import Home
from skerry.providers.local.host import boot_id, boottime, runtime
from skerry.providers.local.launch import launch
from skerry.providers.local.launch.first_connections import Connections
from skerry.providers.local.limits import network
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.limits.resources import upper_limit
from skerry.providers.local.limits.usage import Meter
from skerry.providers.local.locks import FileLock
from skerry.providers.local.log import log_and_continue
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox import record as records
from skerry.providers.local.sandbox.record import Happening, Record
from skerry.providers.local.storage.choose import Storage
from skerry.providers.local.storage.snapshots import Snapshots, snapshots_in
from skerry.providers.local.storage.volumes import Volumes
from skerry.wire import LAST_WORDS_LIMIT, LastWords

Recoveries = Mapping[str, Callable[[Record], Record]]
"""For each kind of pending change, the function that finishes or undoes it after the process that made it has died.

The caller holds the lock, and saves the returned record as no longer pending.
"""
KILL_TIMEOUT = 10.0
ARCHIVE_CHANGES = ("archive", "unarchive")
"""What is pending in a record while its files become an archive, or an archive becomes its files."""
_WORDS_ROOM = 2 * LAST_WORDS_LIMIT
"""Bytes of disk that an agent may use for its last words."""


def restoring_trees(upper: Path) -> tuple[Path, Path]:
    """Where the new tree and the old one are while a restore exchanges them."""
    return upper.with_name(f"{upper.name}~new"), upper.with_name(f"{upper.name}~old")


class Changes:
    """The parts of changes to the sandboxes of one SKERRY_HOME. The caller holds the lock, except for `lock`."""

    def __init__(
        self,
        home: Home,
        cgroups: Cgroups,
        connections: Connections,
        meter: Meter,
        volumes: Volumes,
        snapshots: Snapshots,
        *,
        settle: Callable[[str], object],
    ) -> None:
        """`settle` finishes or undoes what is pending, and ends a sandbox that is due; called with the lock held."""
        self.home = home
        self.store = home.store
        self.cgroups = cgroups
        self.connections = connections
        self.upper = home.upper
        self.settle = settle
        self._meter = meter
        self._volumes = volumes
        self._snapshots = snapshots

    @property
    def storage(self) -> Storage:
        """Where the files are that nobody asked to encrypt. Raises ProviderUnavailable, Corrupted."""
        return self.home.storage

    def storage_of(self, record: Record) -> Storage:
        """Where the files of a sandbox are. Raises ProviderUnavailable, Corrupted, DiskLocked."""
        return self.home.storage_of(encrypted=record.encrypted)

    @contextmanager
    def lock(self, sandbox_id: str, operation: str, *allowed: State) -> Iterator[tuple[Record, FileLock]]:
        """Hold the lock of a sandbox in a state that allows a change: one of `allowed`, or of core.transitions.ALLOWED.

        Raises SandboxNotFound, Conflict.
        """
        self.home.prepare()
        with self.store.lock(sandbox_id) as lock:
            record = self.store.read(sandbox_id)
            if not last_words.settled(record):
                self.settle(sandbox_id)
                record = self.store.read(sandbox_id)
            transitions.require(operation, sandbox_id, record.state, frozenset(allowed) or None)
            yield record, lock

    # -- the record

    @staticmethod
    def require(operation: str, record: Record) -> None:
        """Raises Conflict unless the record's state allows `operation`."""
        transitions.require(operation, record.id, record.state)

    @staticmethod
    def advance(record: Record, state: State) -> Record:
        """The record in a new state, which may follow its present one."""
        return dataclasses.replace(record, state=transitions.follow(record.state, state))

    def begin(self, record: Record, pending: str, *, state: State | None = None, **data: str) -> Record:
        """Note what is about to be done, so that the next command can finish or undo it if this process dies."""
        changed = self.advance(record, state or record.state)
        return self.save(dataclasses.replace(changed, pending=pending, pending_data=data))

    def finish(self, record: Record, state: State, *events: str, flush: bool = False) -> Record:
        """Note that what `begin` noted is complete."""
        done = dataclasses.replace(self.advance(record, state), pending=None, pending_data={})
        return self.save(done, *((event, time.time()) for event in events), flush=flush)

    def save(self, record: Record, *events: Happening, flush: bool = False) -> Record:
        """Write the record, and the events that led to it.

        The record is on disk when this returns only if the caller wants it flushed or if it concerns an archive, which
        may be all there is of a sandbox's files. Flushing always would make every start slower.
        """
        directory = self.store.directory(record.id)
        if events:
            records.log_events(directory, *events)
        flush = flush or record.state is State.ARCHIVED or record.pending in ARCHIVE_CHANGES
        records.write(directory, record, flush=flush)
        return record

    def log(self, record: Record, event: str, at: float | None = None, data: Mapping[str, str] | None = None) -> None:
        """Note an event of a change that is not complete yet."""
        happened = (event, time.time() if at is None else at)
        records.log_events(self.store.directory(record.id), (*happened, dict(data)) if data else happened)

    # -- processes

    def bring_up(self, record: Record, lock: FileLock) -> Record:
        """Start a sandbox that has an id range and no process; the caller saves the record.

        Raises SandboxFailed, Conflict, Timeout, DiskFull; the caller then ends what was started with `halt`.
        """
        directory = self.store.directory(record.id)
        lifetime = record.spec.timeout
        record = dataclasses.replace(
            record, expires_at=time.time() + lifetime, deadline=boottime() + lifetime, boot=boot_id()
        )
        disk = self._disk(record)
        with self._room_to_start(record, disk.upper):
            started = launch.start(record, directory, disk, runtime(), self.cgroups, lock)
        self.connections.keep(record.id, started)
        record = dataclasses.replace(record, state=State.RUNNING, init=started.init, started_at=time.time())
        if record.spec.network == "open":
            assert record.slot is not None
            network.attach(record.slot, started.init.pid, self.cgroups.join_files(record.id))
        return record

    def halt(self, record: Record) -> Record:
        """End everything that runs of a sandbox and free its id range; its folder, files and record stay."""
        if record.init is not None:
            record.init.signal_kill()
        self.cgroups.thaw(record.id)  # a frozen process does not die
        if record.init is not None:
            record.init.kill(KILL_TIMEOUT)
        self.cgroups.remove(record.id, KILL_TIMEOUT)
        if record.slot is not None and network.attached(record.slot):
            network.detach(record.slot)
        self._meter.forget(record.id)
        self.connections.close(record.id)
        launch.Layout(directory=self.store.directory(record.id)).clear()
        return dataclasses.replace(self.store.release_slot(record), init=None)

    def tear_down(self, record: Record) -> None:
        """Kill every process, then remove every trace, in an order that lets the next sweep finish it after a crash."""
        with contextlib.suppress(OSError):  # on a full disk a temporary volume stays
            self._volumes.let_go(record.id)
        # From here on the sandbox is gone for every caller: a sweep that finds the folder unlocked, without a record,
        # removes the rest.
        records.remove(self.store.directory(record.id))
        self.halt(record)
        # A sandbox can be removed without its storage; the sweep finds its files when the storage is back.
        with log_and_continue(f"the files of sandbox {record.id}"):
            self.remove_words(record.id)
            upper, storage = self.upper(record), self.storage_of(record)
            for tree in (upper, *restoring_trees(upper)):
                storage.remove(tree)
        self.store.forget(record)
        with log_and_continue(f"what only sandbox {record.id} needed"):
            used = snapshots_in((*record.lowers, *((record.seed,) if record.seed else ())))
            if record.snapshot is not None and record.snapshot not in used:
                used.append(record.snapshot)  # if it was deleted, its record is kept for those that name it
            if used:
                self._snapshots.let_go(used)
            if record.spec.volumes:
                self._volumes.sweep()

    def socket(self, sandbox_id: str) -> Path:
        """The socket of the sandbox's agent."""
        return launch.Layout(directory=self.store.directory(sandbox_id)).socket

    # -- trees

    def _disk(self, record: Record) -> launch.Disk:
        return launch.Disk(
            lowers=tuple(self.store.home / layer for layer in record.lowers),
            upper=self.upper(record),
            words=self.store.words(record.id),
            make=lambda: self.make_upper(record),
            make_words=lambda: self._make_words(record.id),
            volumes=self._volumes.attach(record),
        )

    def _room_to_start(self, record: Record, upper: Path) -> AbstractContextManager[None]:
        """Extend a full layer: overlayfs makes its own directory at every start, or the root is read-only."""
        return self.storage_of(record).extended(upper, upper_limit(record)) if upper.exists() else nullcontext()

    def make_upper(self, record: Record) -> None:
        """Make the writable layer a sandbox begins with, unless there is one. Raises DiskFull, OSError."""
        upper, storage = self.upper(record), self.storage_of(record)
        if upper.exists():
            return
        limit = upper_limit(record)
        if record.seed is not None:
            storage.copy(self.store.home / record.seed, upper, limit=limit)
            return
        storage.create(upper, limit)
        for name in ("u", "w"):
            (upper / name).mkdir(mode=0o755)
        upper.chmod(0o755)

    def require_files(self, record: Record) -> None:
        """Raises Corrupted if some of a sandbox's files are missing, rather than start it empty."""
        needed = [self.upper(record) / "u", *(self.store.home / layer for layer in record.lowers)]
        for path in needed:
            if not path.is_dir():
                raise Corrupted(
                    f"files of sandbox {record.id} are missing: there is no {path}",
                    hint="put them back, begin again with reset(hard=True) or restart(template=…), or destroy it",
                )

    # -- last words

    def words(self, sandbox_id: str) -> LastWords | None:
        """The last words of an ended sandbox's agent; None if it left none that make sense.

        They are in the storage, which this mounts if it is the first look after a boot.
        """
        with contextlib.suppress(SkerryError, OSError):  # with a broken pool nothing is known of the end
            _ = self.storage
        return last_words.read_words(self.store, sandbox_id)

    def _make_words(self, sandbox_id: str) -> None:
        """Make an empty file for the agent's last words, in a tree that limits its size. Raises DiskFull, OSError."""
        file, storage = self.store.words(sandbox_id), self.storage
        if file.parent.exists():
            storage.remove(file.parent)  # a full tree cannot even be cleared
        storage.create(file.parent, _WORDS_ROOM if storage.default_limit() is not None else None)
        last_words.old_words_file(self.store, sandbox_id).unlink(missing_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def remove_words(self, sandbox_id: str) -> None:
        """Forget the last words of a sandbox that has no process; if they stay, the next start clears them."""
        last_words.old_words_file(self.store, sandbox_id).unlink(missing_ok=True)
        with log_and_continue(f"the last words of sandbox {sandbox_id}"):
            self.storage.remove(self.store.words(sandbox_id).parent)
