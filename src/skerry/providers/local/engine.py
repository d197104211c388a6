"""Makes, finds and ends sandboxes on this machine. Blocking; safe from any number of threads and processes.

A sandbox's lock is held for every change of it. What becomes of those that nobody holds is in `sandbox/sweep.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from skerry.core import (
    Conflict,
    Corrupted,
    Event,
    NewerVersion,
    QuotaExceeded,
    Resources,
    SandboxFailed,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    SandboxStopped,
    SkerryError,
    State,
    Unsupported,
    Usage,
    home,
    limits,
    transitions,
)
from skerry.providers.local.host import ProcessId, boot_id, boottime, require_root, runtime
from skerry.providers.local.launch import launch
from skerry.providers.local.launch.first_connections import Connections
from skerry.providers.local.limits import network
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.limits.resources import LEAST_DISK, check_limits, merge, upper_limit
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox import record as records
from skerry.providers.local.sandbox.archive import COLD_CHANGES, Cold
from skerry.providers.local.sandbox.folders import KeyTaken, Store, new_id
from skerry.providers.local.sandbox.lifecycle import Lifecycle
from skerry.providers.local.sandbox.record import Happening, Record
from skerry.providers.local.sandbox.restore import Restoring, restoring_trees
from skerry.providers.local.sandbox.sweep import KILL_TIMEOUT, Sweeping, trying
from skerry.providers.local.storage.bases import Base, find_base
from skerry.providers.local.storage.choose import Storage, open_storage
from skerry.providers.local.storage.export import States
from skerry.providers.local.storage.layers import Templates
from skerry.providers.local.storage.snapshots import Snapshots, snapshots_in
from skerry.providers.local.storage.volumes import Volumes
from skerry.wire import LAST_WORDS_LIMIT, LastWords

_WORDS_ROOM = 2 * LAST_WORDS_LIMIT
"""What an agent may take of the disk for its last words."""


class Engine:
    """The sandboxes of one SKERRY_HOME."""

    def __init__(self, directory: Path | None = None) -> None:
        require_root()
        self.store = Store(directory or home())
        self._storage: Storage | None = None
        self.cgroups = Cgroups.detect()
        self._ready = threading.Lock()  # protects the one-time preparation
        self._prepared = False
        self.recovery: dict[str, Callable[[Record], Record]] = {}
        """For each kind of pending change what finishes or undoes it when whoever made it has died at it.

        Called with the lock held; the record returned is saved as no longer pending.
        """
        self.snapshots = Snapshots(self)
        self.restoring = Restoring(self)
        self.templates = Templates(self)
        self._cpu_seen: dict[str, tuple[float, float]] = {}
        self.connections = Connections()
        self.lifecycle = Lifecycle(self)
        self.volumes = Volumes(self)
        self.states = States(self)
        self.cold = Cold(self)
        self.sweeping = Sweeping(self)

    @property
    def storage(self) -> Storage:
        """Where the files of the sandboxes are. Raises ProviderUnavailable, Corrupted."""
        if self._storage is None:
            self._storage = open_storage(self.store.home)
        else:
            self._storage.prepare()  # it may have been unmounted meanwhile
        return self._storage

    def words(self, sandbox_id: str) -> LastWords | None:
        """What the agent of a sandbox that has ended left; None where it left nothing that makes sense.

        They are in the storage, which nobody has mounted yet when this is the first look after a boot.
        """
        with contextlib.suppress(SkerryError, OSError):  # a broken pool: nothing is known of the end
            _ = self.storage
        return last_words.read_words(self.store, sandbox_id)

    def prepare(self) -> None:
        """Once a process: the directories are there, and what dead processes left is swept."""
        with self._ready:
            if not self._prepared:
                self.store.prepare()
                self._prepared = True
                # What storage cannot do is said to whoever needs it: a broken pool must not keep anybody from
                # looking at sandboxes and ending them.
                with contextlib.suppress(SkerryError, OSError):
                    self.sweep()

    # -- create

    def create(self, spec: SandboxSpec) -> Record:
        """Make a sandbox and wait for its agent. On any failure nothing of it is left."""
        which = runtime()
        launch.check_binaries()
        self.prepare()
        asked = ""
        if spec.idempotency_key is not None:
            asked = records.digest(spec)
            if known := self._known(spec.idempotency_key, asked):
                return known  # whatever of what it was made from is there no more
        granted = self.grant(spec)
        if spec.secrets_of is not None:
            theirs = self.store.read(spec.secrets_of).spec.secrets
            spec = dataclasses.replace(spec, secrets={**theirs, **spec.secrets}, secrets_of=None)
        with self._base(spec) as base:
            _check_room(base, granted)
            spec = dataclasses.replace(spec, template=base.template)
            self.volumes.check(spec, host=base.host)
            return self._create(dataclasses.replace(self._new_record(spec, granted, which[0], base), asked=asked))

    @contextmanager
    def _base(self, spec: SandboxSpec) -> Iterator[Base]:
        """What it begins with, and that nobody removes meanwhile. Raises TemplateNotFound, SnapshotNotFound."""
        if spec.snapshot is None:
            # `host` is never removed: no lock slows down the making of its sandboxes
            with self.templates.using() if spec.template != "host" else nullcontext():
                yield find_base(self.store, spec.template)
        else:
            with self.snapshots.held(spec.snapshot) as kept:
                yield self.snapshots.base(kept)

    def _create(self, record: Record) -> Record:
        while True:
            try:
                record, lock = self.store.add(record)
                break
            except KeyTaken:  # by a create at the same time: its sandbox is the answer
                assert record.spec.idempotency_key is not None
                if known := self._known(record.spec.idempotency_key, record.asked):
                    return known
        try:
            record = self.bring_up(record, lock)
            self.save(record, ("created", record.created_at), ("ready", time.time()))
            return record
        except BaseException:
            self.tear_down(record)
            raise
        finally:
            lock.release()

    @staticmethod
    def _new_record(spec: SandboxSpec, granted: Resources, runtime: str, base: Base) -> Record:
        return Record(
            id=new_id(),
            state=State.CREATING,
            spec=spec,
            limits=granted,
            token=secrets.token_hex(16),
            created_at=time.time(),
            user=spec.user or base.user,
            workdir=spec.workdir or base.workdir,
            ports=base.ports,
            base_env=base.env,
            lowers=base.layers,
            host=base.host,
            inherited=base.inherited,
            seed=base.seed,
            snapshot=base.snapshot,
            runtime=runtime,
            lease=ProcessId.mine() if spec.leased else None,
        )

    # -- what every change of a sandbox is made of; the caller holds its lock

    def bring_up(self, record: Record, lock: FileLock) -> Record:
        """Start a sandbox that has an id range and of which nothing runs; the record is the caller's to save.

        Raises SandboxFailed, Conflict, Timeout, DiskFull; what was started is then for `halt` to end.
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

    def _room_to_start(self, record: Record, upper: Path) -> AbstractContextManager[None]:
        """overlayfs makes a directory of its own at every start: one that cannot, in a full layer, is read-only."""
        return self.storage.extended(upper, upper_limit(record)) if upper.exists() else nullcontext()

    def upper(self, sandbox_id: str) -> Path:
        """What a sandbox wrote."""
        return self.storage.uppers / sandbox_id

    def _disk(self, record: Record) -> launch.Disk:
        upper = self.upper(record.id)
        return launch.Disk(
            lowers=tuple(self.store.home / layer for layer in record.lowers),
            upper=upper,
            words=self.store.words(record.id),
            make=lambda: self.make_upper(record),
            make_words=lambda: self._make_words(record.id),
            volumes=self.volumes.attach(record),
        )

    def make_upper(self, record: Record) -> None:
        """The writable layer a sandbox begins with, unless there is one. Raises DiskFull, OSError."""
        upper = self.upper(record.id)
        if upper.exists():
            return
        limit = upper_limit(record)
        if record.seed is not None:
            self.storage.copy(self.store.home / record.seed, upper, limit=limit)
            return
        self.storage.create(upper, limit)
        for name in ("u", "w"):
            (upper / name).mkdir(mode=0o755)
        upper.chmod(0o755)

    def _make_words(self, sandbox_id: str) -> None:
        """An empty file for the agent's last words, in a tree that limits its size. Raises DiskFull, OSError."""
        file, storage = self.store.words(sandbox_id), self.storage
        if file.parent.exists():
            storage.remove(file.parent)  # a full one cannot even be cleared
        storage.create(file.parent, _WORDS_ROOM if storage.default_limit() is not None else None)
        last_words.old_words_file(self.store, sandbox_id).unlink(missing_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def remove_words(self, sandbox_id: str) -> None:
        """Forget the last words of a sandbox of which nothing runs; should they stay, the next start clears them."""
        last_words.old_words_file(self.store, sandbox_id).unlink(missing_ok=True)
        with trying(f"the last words of sandbox {sandbox_id}"):
            self.storage.remove(self.store.words(sandbox_id).parent)

    @contextmanager
    def changing(self, sandbox_id: str, operation: str, *allowed: State) -> Iterator[tuple[Record, FileLock]]:
        """Hold the lock of a sandbox for a change that its state allows: one of these, or of core.transitions.ALLOWED.

        Raises SandboxNotFound, Conflict.
        """
        self.prepare()
        with self.store.lock(sandbox_id) as lock:
            record = self.store.read(sandbox_id)
            if not self._settled(record):  # finishes or undoes what somebody died at
                self.sweeping.locked(sandbox_id)
                record = self.store.read(sandbox_id)
            transitions.require(operation, sandbox_id, record.state, frozenset(allowed) or None)
            yield record, lock

    @staticmethod
    def require(operation: str, record: Record) -> None:
        """Raises Conflict unless its state allows `operation`."""
        transitions.require(operation, record.id, record.state)

    @staticmethod
    def advance(record: Record, state: State) -> Record:
        """The record in a state that may follow its own."""
        return dataclasses.replace(record, state=transitions.follow(record.state, state))

    def finish(self, record: Record, state: State, *events: str, flush: bool = False) -> Record:
        """What `begin` noted is complete."""
        done = dataclasses.replace(self.advance(record, state), pending=None, pending_data={})
        return self.save(done, *((event, time.time()) for event in events), flush=flush)

    def log(self, record: Record, event: str, at: float | None = None, data: Mapping[str, str] | None = None) -> None:
        """Note an event of a change that is not complete yet."""
        happened = (event, time.time() if at is None else at)
        records.log_events(self.store.directory(record.id), (*happened, dict(data)) if data else happened)

    def begin(self, record: Record, pending: str, *, state: State | None = None, **data: str) -> Record:
        """Note what is about to be done, so that it can be finished or undone should we die at it."""
        changed = self.advance(record, state or record.state)
        return self.save(dataclasses.replace(changed, pending=pending, pending_data=data))

    def save(self, record: Record, *events: Happening, flush: bool = False) -> Record:
        """Write the record, and the events that led to it.

        It need not be on disk when this returns, which would make every start slower, unless it is to be flushed or
        has to do with an archive, which may be all there is of a sandbox's files.
        """
        directory = self.store.directory(record.id)
        if events:
            records.log_events(directory, *events)
        flush = flush or record.state is State.ARCHIVED or record.pending in COLD_CHANGES
        records.write(directory, record, flush=flush)
        return record

    def halt(self, record: Record) -> Record:
        """End everything that runs of a sandbox and free its id range; its folder, files and record stay."""
        if record.init is not None:
            record.init.signal_kill()
        self.cgroups.thaw(record.id)  # what is frozen does not die
        if record.init is not None:
            record.init.kill(KILL_TIMEOUT)
        self.cgroups.remove(record.id, KILL_TIMEOUT)
        if record.slot is not None and network.attached(record.slot):
            network.detach(record.slot)
        self._cpu_seen.pop(record.id, None)
        self.connections.close(record.id)
        launch.Layout(directory=self.store.directory(record.id)).clear()
        return dataclasses.replace(self.store.release_slot(record), init=None)

    def grant(self, spec: SandboxSpec) -> Resources:
        """The limits a sandbox gets. Raises Unsupported, QuotaExceeded."""
        asked, allowed = spec.resources, limits()
        if asked.disk is not None:
            self.storage.require_limits("resources.disk")
        if asked.gpu is not None:
            raise Unsupported("the local provider has no GPUs", option="resources.gpu")
        if spec.isolation not in (None, "container"):
            raise Unsupported(f"the isolation level {spec.isolation!r} is not available here", option="isolation")
        if spec.on_timeout == "pause":
            raise Unsupported(
                "the local provider cannot freeze a sandbox at its timeout: nobody is there to do it",
                option="on_timeout",
                hint="on_timeout='stop' keeps the files",
            )
        if spec.network == "open":
            network.require()
        granted = Resources(
            cpu=asked.cpu if asked.cpu is not None else min(allowed.cpu, allowed.max_cpu),
            memory=asked.memory if asked.memory is not None else min(allowed.memory, allowed.max_memory),
            disk=asked.disk if asked.disk is not None else self.storage.default_limit(),
            pids=asked.pids if asked.pids is not None else min(allowed.pids, allowed.max_pids),
        )
        check_limits(granted)
        self.cgroups.require(granted)
        return granted

    def _known(self, key: str, asked: str) -> Record | None:
        """The sandbox already made under this key, if it lives. Raises Conflict when something else was asked for."""
        sandbox_id = self.store.holder_of(self.store.key_path(key))
        if sandbox_id is None:
            return None
        try:
            with self.store.lock(sandbox_id):  # waits for a create that is still under way
                self.sweeping.locked(sandbox_id)  # its maker may have died, or its end may have come
                record = self.store.read(sandbox_id)
        except SandboxNotFound:
            return None
        if record.asked != asked:
            raise Conflict("this idempotency key was used with other options", hint="use a new key for a new sandbox")
        return record

    # -- look

    def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound, Corrupted."""
        return self.current(sandbox_id).info()

    def find(self, id_or_name: str) -> SandboxInfo:
        self.prepare()
        return self.get(self.store.resolve(id_or_name))

    def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox there is; those whose end has come are swept on the way."""
        found = []
        for sandbox_id, (record, settled) in self.look_at_all().items():
            try:
                found.append((record if settled else self.current(sandbox_id)).info())
            except SandboxNotFound:
                continue
            except (Corrupted, NewerVersion) as error:
                found.append(self.guess(sandbox_id, str(error)).info())
        return sorted(found, key=lambda info: info.created_at)

    def look(self, sandbox_id: str) -> tuple[Record, bool]:
        """The record as it is written, and whether it says all; where it does not, `current` does.

        Waits for nothing. Raises SandboxNotFound, Corrupted.
        """
        record = self.store.read(sandbox_id)
        return record, self._settled(record)

    def look_at_all(self, sandbox_ids: Sequence[str] | None = None) -> dict[str, tuple[Record, bool]]:
        """What `look` says of these sandboxes, or of all, by their ids; a damaged one's stand-in."""
        self.prepare()
        found = {}
        for sandbox_id in list(self.store.ids()) if sandbox_ids is None else sandbox_ids:
            try:
                found[sandbox_id] = self.look(sandbox_id)
            except SandboxNotFound:
                continue
            except (Corrupted, NewerVersion) as error:
                found[sandbox_id] = self.guess(sandbox_id, str(error)), True
        return found

    def current(self, sandbox_id: str) -> Record:
        """The record as it is now: a dead sandbox is swept or found failed. Raises SandboxNotFound, Corrupted."""
        record, settled = self.look(sandbox_id)
        if settled:
            return record
        try:
            self.sweeping.one(sandbox_id)
        except (SkerryError, OSError) as error:
            record = self.store.read(sandbox_id)
            over = not record.alive or record.expired() or record.abandoned()
            if over and record.state in (State.RUNNING, State.PAUSED):
                reason = f"it has come to its end, but cannot be ended: {error}"[:600]
                return dataclasses.replace(record, state=State.FAILED, reason=reason)
            return record
        return self.store.read(sandbox_id)

    @staticmethod
    def _settled(record: Record) -> bool:
        """Whether it is what its record says, and its end is not due."""
        if record.pending is not None or record.expired() or record.abandoned() or last_words.delete_due(record):
            return False
        return record.alive or record.state not in (State.RUNNING, State.PAUSED)

    def running(self, sandbox_id: str) -> Record:
        """The record of a sandbox that runs. Raises SandboxNotFound, SandboxStopped, SandboxFailed."""
        return self.require_running(self.current(sandbox_id))

    @staticmethod
    def require_running(record: Record) -> Record:
        """Raises SandboxStopped, SandboxFailed unless it runs."""
        if record.state is State.FAILED:
            raise SandboxFailed(f"sandbox {record.id} has failed: {record.reason}")
        if record.state is not State.RUNNING:
            because = f": {record.reason}" if record.reason else ""
            hint = "resume it" if record.state is State.PAUSED else None
            raise SandboxStopped(f"sandbox {record.id} is {record.state}{because}", hint=hint)
        return record

    def socket(self, sandbox_id: str) -> Path:
        return launch.Layout(directory=self.store.directory(sandbox_id)).socket

    def events(self, sandbox_id: str, since: int) -> Sequence[Event]:
        self.store.read(sandbox_id)
        return records.read_events(self.store.directory(sandbox_id), sandbox_id, since)

    def usage(self, sandbox_id: str) -> Usage:
        record = self.running(sandbox_id)
        try:
            counters = self.cgroups.counters(sandbox_id)
        except FileNotFoundError:
            raise SandboxNotFound(f"sandbox {sandbox_id} has just ended") from None
        used = self.storage.used(self.upper(sandbox_id))
        now = time.monotonic()
        started = record.started_at if record.started_at is not None else record.created_at
        seen, before = self._cpu_seen.get(sandbox_id, (now - max(0.001, time.time() - started), 0.0))
        self._cpu_seen[sandbox_id] = (now, counters.cpu_seconds)
        return Usage(
            cpu_percent=max(0.0, 100 * (counters.cpu_seconds - before) / max(0.001, now - seen)),
            cpu_seconds=counters.cpu_seconds,
            memory_used=counters.memory_used,
            memory_total=record.limits.memory,
            disk_used=None if used is None else used + record.inherited,
            disk_total=record.limits.disk,
            network_rx=0,
            network_tx=0,
            pids=counters.pids,
            pids_limit=record.limits.pids,
        )

    # -- change

    def _update(self, sandbox_id: str, **changes: object) -> Record:
        self.running(sandbox_id)
        with self.changing(sandbox_id, "change") as (record, _):
            return self.save(dataclasses.replace(record, **changes))  # type: ignore[arg-type]

    def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        if seconds > limits().max_lifetime:
            raise QuotaExceeded(f"a lifetime of {seconds:.0f} s is above the maximum of {limits().max_lifetime:.0f} s")
        deadline, wall = boottime() + seconds, time.time() + seconds
        return self._update(sandbox_id, deadline=deadline, expires_at=wall, boot=boot_id()).info()

    def record_lease(self, sandbox_id: str, held: bool) -> None:
        if held:
            self._update(sandbox_id, lease=ProcessId.mine())
        else:
            self._update(sandbox_id, lease=None, prepared=self.store.read(sandbox_id).spec.leased)  # never changes

    def set_limits(self, sandbox_id: str, wanted: Resources) -> SandboxInfo:
        self.check_resources(wanted)
        self.running(sandbox_id)
        with self.changing(sandbox_id, "change") as (record, _):
            self.cgroups.set_limits(sandbox_id, wanted)
            if wanted.disk is not None:
                self.storage.set_limit(self.upper(sandbox_id), max(0, wanted.disk - record.inherited))
            return self.save(dataclasses.replace(record, limits=merge(record.limits, wanted))).info()

    def check_resources(self, wanted: Resources) -> None:
        """Whether a sandbox that exists can get these limits. Raises Unsupported, QuotaExceeded."""
        if wanted.gpu is not None:
            raise Unsupported("the local provider has no GPUs", option="gpu")
        if wanted.disk is not None:
            self.storage.require_limits("disk")
        check_limits(wanted)
        self.cgroups.require(wanted)

    # -- end

    def destroy(self, sandbox_id: str) -> None:
        """End it and remove everything of it; one that is not there is no error."""
        self.prepare()
        try:
            self.hasten(sandbox_id)
            with self.store.lock(sandbox_id):
                self.tear_down(self._read_or_guess(sandbox_id))
        except SandboxNotFound:
            return

    def hasten(self, sandbox_id: str) -> None:
        """Kill a sandbox that is being stopped: a caller that waits for its processes need not any more.

        Raises SandboxNotFound.
        """
        before = self._read_or_guess(sandbox_id)
        if before.state is State.STOPPING and before.init is not None:
            before.init.signal_kill()

    def _read_or_guess(self, sandbox_id: str) -> Record:
        """The record, or for a damaged or missing one what can be told without it. Raises SandboxNotFound."""
        try:
            return self.store.read(sandbox_id)
        except Corrupted as error:
            return self.guess(sandbox_id, str(error))
        except SandboxNotFound as error:
            if not self.store.directory(sandbox_id).is_dir():
                raise
            return self.guess(sandbox_id, str(error))

    def guess(self, sandbox_id: str, reason: str) -> Record:
        """A stand-in for a damaged record: failed, with as much as the links tell, which is enough to remove it."""
        return Record(
            id=sandbox_id,
            state=State.FAILED,
            spec=SandboxSpec(name=self.store.name_of(sandbox_id)),
            limits=Resources(),
            token="",
            created_at=0.0,
            slot=self.store.slot_of(sandbox_id),
            reason=reason,
        )

    def tear_down(self, record: Record) -> None:
        """Kill every process, then remove every trace, in an order that lets the next sweep finish it after a crash."""
        with contextlib.suppress(OSError):  # a full disk: then a temporary volume stays
            self.volumes.let_go(record.id)
        # From here on it is gone for everybody: a folder without a record is finished by whoever finds it unlocked.
        records.remove(self.store.directory(record.id))
        self.halt(record)
        # Without its storage a sandbox goes all the same; its files are found by the sweep when the storage is back.
        with trying(f"the files of sandbox {record.id}"):
            for tree in (self.upper(record.id), *restoring_trees(self.upper(record.id))):
                self.storage.remove(tree)
            self.remove_words(record.id)
        self.store.forget(record)
        with trying(f"what only sandbox {record.id} needed"):
            used = snapshots_in((*record.lowers, *((record.seed,) if record.seed else ())))
            if record.snapshot is not None and record.snapshot not in used:
                used.append(record.snapshot)  # deleted, its record is kept for those that name it
            if used:
                self.snapshots.let_go(used)
            if record.spec.volumes:
                self.volumes.sweep()

    def settle(self, sandbox_id: str) -> None:
        """Sweep a sandbox if its end has come."""
        self.sweeping.one(sandbox_id)

    def sweep(self) -> Sequence[str]:
        """Remove what nobody owns any more; the ids of the sandboxes removed. What cannot go now is logged.

        Raises ProviderUnavailable, Corrupted, DiskFull, InvalidArgument where the storage cannot be used.
        """
        return self.sweeping.everything()


def _check_room(base: Base, granted: Resources) -> None:
    if granted.disk is not None and base.holds + LEAST_DISK > granted.disk:
        raise QuotaExceeded(
            f"the snapshot holds {base.holds} bytes, which leaves no room under a disk limit of {granted.disk}",
            hint="ask for a larger disk",
        )
