"""Brings a sandbox, under its own id, back to a snapshot.

The new tree is made beside the old one while the sandbox still runs: a full disk changes nothing. Then it is noted what
is about to happen, everything is killed, and the trees are exchanged by renames. Who dies at it leaves this to the next
command: the files become those of the snapshot, and the sandbox is stopped.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.core import Conflict, DiskFull, QuotaExceeded, SkerryError, State
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.record import Happening, Record, error_event
from skerry.providers.local.storage.snapshot_record import Kept

if TYPE_CHECKING:
    from skerry.providers.local.engine import Engine


def restoring_trees(upper: Path) -> tuple[Path, Path]:
    """Where the new tree and the old one are while they are exchanged."""
    return upper.with_name(f"{upper.name}~new"), upper.with_name(f"{upper.name}~old")


class Restoring:
    """Restores in place."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.recovery["restore"] = self._recover

    def restore(self, sandbox_id: str, snapshot_id: str) -> Record:
        """It runs afterwards if it ran before, with the variables of the snapshot and its own secrets.

        Raises SandboxNotFound, SnapshotNotFound, Conflict, QuotaExceeded, DiskFull, Corrupted; SandboxFailed when it
        does not come up again.
        """
        engine = self._engine
        with (
            engine.changing(sandbox_id, "restore", *State) as (record, lock),
            engine.snapshots.held(snapshot_id) as kept,
        ):
            before, lease = record.state, record.lease
            self._check(record, kept)
            self._make(record, kept)
            record = engine.begin(record, "restore", state=State.RESTORING, target=kept.id)
            record = dataclasses.replace(engine.halt(record), lease=lease)
            try:
                restored = self._exchange(record, kept)
            except OSError as error:
                self._put_back(engine.upper(sandbox_id))
                self._go_on(record, lock, before)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(f"no room to restore sandbox {sandbox_id}", errno=error.errno) from error
                raise
            after = before if before in (State.RUNNING, State.PAUSED) else State.STOPPED
            return self._go_on(restored, lock, after, ("restored", time.time()))

    def _go_on(self, record: Record, lock: FileLock, state: State, *events: Happening) -> Record:
        """Start it if it ran, and end the change. Raises SandboxFailed, Timeout, DiskFull; it is failed then."""
        engine = self._engine
        if state in (State.RUNNING, State.PAUSED):
            try:
                record = engine.bring_up(engine.save(engine.store.take_slot(record)), lock)
            except BaseException as error:
                reason = f"it did not start after its restore: {error}"[:600]
                failed = dataclasses.replace(engine.halt(record), state=State.FAILED, reason=reason)
                engine.save(_settled(failed), *events, error_event("failed", failed))
                raise
            state = State.RUNNING
        # What is due after inactivity counts from here on.
        done = dataclasses.replace(record, state=state, last_active_at=time.time())
        return engine.save(_settled(done), *events)

    def _check(self, record: Record, kept: Kept) -> None:
        if record.state is State.ARCHIVED:
            raise Conflict(f"cannot restore sandbox {record.id}: it is archived", hint="start it first")
        if record.state not in (State.RUNNING, State.PAUSED, State.STOPPED, State.FAILED):
            raise Conflict(f"cannot restore sandbox {record.id}: it is {record.state}")
        if record.spec.template != kept.template:
            raise Conflict(
                f"snapshot {kept.id} is of the template {kept.template!r}, not of {record.spec.template!r}",
                hint=f"create a sandbox from it: create(snapshot={kept.id!r})",
            )
        if record.limits.disk is not None and kept.total > record.limits.disk:
            raise QuotaExceeded(
                f"snapshot {kept.id} holds {kept.total} bytes, above the disk limit of {record.limits.disk}",
                hint="raise the limit first: set_limits(disk=…)",
            )

    def _make(self, record: Record, kept: Kept) -> None:
        """The new tree, beside the old one. Raises DiskFull, OSError; nothing is left of it then."""
        engine = self._engine
        fresh, _ = restoring_trees(engine.upper(record.id))
        limit = None if record.limits.disk is None else record.limits.disk - kept.inherited
        try:
            engine.storage.remove(fresh)
            engine.storage.copy(engine.snapshots.tree(kept.id), fresh, limit=limit)
        except BaseException:
            engine.storage.remove(fresh)
            raise

    def _exchange(self, record: Record, kept: Kept) -> Record:
        """Put the new tree in the place of the old one; nothing of the sandbox runs."""
        upper = self._engine.upper(record.id)
        fresh, old = restoring_trees(upper)
        storage = self._engine.storage
        if upper.exists():
            storage.remove(old)
            upper.rename(old)
        fresh.rename(upper)
        with suppress(OSError):  # what stays goes with the next restore, or with the sandbox
            storage.remove(old)
        return dataclasses.replace(
            record,
            lowers=kept.lowers,
            host=kept.host,
            inherited=kept.inherited,
            seed=kept.seed,
            env=kept.env,
            snapshot=kept.parent if kept.hidden else kept.id,
            reason=None,
        )

    def _recover(self, record: Record) -> Record:
        """Finish what somebody died at; should that not be possible, keep the files it had."""
        engine = self._engine
        if record.slot is None:  # whoever started it again may have died before it was noted
            record = dataclasses.replace(record, slot=engine.store.slot_of(record.id))
        record = engine.halt(record)
        try:
            with engine.snapshots.held(record.pending_data["target"], deleted=True) as kept:
                self._make(record, kept)
                record = self._exchange(record, kept)
        except (SkerryError, OSError) as error:
            self._put_back(engine.upper(record.id))
            reason = f"its restore was cut short and cannot be finished: {error}"[:600]
            failed = dataclasses.replace(record, state=State.FAILED, reason=reason)
            return engine.save(failed, error_event("failed", failed))
        reason = "who restored it died at it; its files are those of the snapshot"
        engine.save(record, ("restored", time.time()))
        now = time.time()
        return dataclasses.replace(record, state=State.STOPPED, stopped_at=now, last_active_at=now, reason=reason)

    def _put_back(self, upper: Path) -> None:
        """The old tree is where it was; what was made is gone, which also makes room for a name."""
        fresh, old = restoring_trees(upper)
        self._engine.storage.remove(fresh)
        if old.exists() and not upper.exists():
            old.rename(upper)


def _settled(record: Record) -> Record:
    return dataclasses.replace(record, pending=None, pending_data={})
