"""Restores a sandbox, under its own id, to a snapshot.

The new tree is made beside the old one while the sandbox still runs: a full disk changes nothing. Then the record notes
what is about to happen, every process is killed, and the trees are exchanged by renames. If the process dies in the
middle, the next command finishes it: the files become those of the snapshot, and the sandbox is stopped.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from contextlib import suppress

from skerry.core import Conflict, DiskFull, QuotaExceeded, SkerryError, State, human_size
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.changes import Changes, Recoveries, restoring_trees
from skerry.providers.local.sandbox.record import Happening, Record, error_event
from skerry.providers.local.storage.snapshot_record import Kept
from skerry.providers.local.storage.snapshots import Snapshots


class Restore:
    """Restores in place."""

    def __init__(self, changes: Changes, snapshots: Snapshots) -> None:
        self._changes = changes
        self._snapshots = snapshots

    def recoveries(self) -> Recoveries:
        return {"restore": self._recover}

    def to_snapshot(self, sandbox_id: str, snapshot_id: str) -> Record:
        """The sandbox runs afterwards if it ran before, with the variables of the snapshot and its own secrets.

        Raises SandboxNotFound, SnapshotNotFound, Conflict, QuotaExceeded, DiskFull, Corrupted; SandboxFailed when it
        does not start again.
        """
        changes = self._changes
        with (
            changes.lock(sandbox_id, "restore", *State) as (record, lock),
            self._snapshots.held(snapshot_id) as kept,
        ):
            before, lease = record.state, record.lease
            self._check(record, kept)
            self._make(record, kept)
            record = changes.begin(record, "restore", state=State.RESTORING, target=kept.id)
            record = dataclasses.replace(changes.halt(record), lease=lease)
            try:
                restored = self._exchange(record, kept)
            except OSError as error:
                self._put_back(record)
                self._run_again(record, lock, before)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(f"no room to restore sandbox {sandbox_id}", errno=error.errno) from error
                raise
            after = before if before in (State.RUNNING, State.PAUSED) else State.STOPPED
            return self._run_again(restored, lock, after, ("restored", time.time()))

    def _run_again(self, record: Record, lock: FileLock, state: State, *events: Happening) -> Record:
        """Start the sandbox if it ran, and end the change. On SandboxFailed, Timeout and DiskFull it has failed."""
        changes = self._changes
        if state in (State.RUNNING, State.PAUSED):
            try:
                record = changes.bring_up(changes.save(changes.store.take_slot(record)), lock)
            except BaseException as error:
                reason = f"it did not start after its restore: {error}"[:600]
                failed = dataclasses.replace(changes.halt(record), state=State.FAILED, reason=reason)
                changes.save(_settled(failed), *events, error_event("failed", failed))
                raise
            state = State.RUNNING
        # The time without activity counts from here on.
        done = dataclasses.replace(record, state=state, last_active_at=time.time())
        return changes.save(_settled(done), *events)

    def _check(self, record: Record, kept: Kept) -> None:
        if record.state is State.ARCHIVED:
            raise Conflict(f"cannot restore sandbox {record.id}: it is archived", hint="start it first")
        if record.state not in (State.RUNNING, State.PAUSED, State.STOPPED, State.FAILED):
            raise Conflict(f"cannot restore sandbox {record.id}: it is {record.state}")
        if record.spec.template != kept.template:
            raise Conflict(
                f"snapshot {kept.id} is of the template {kept.template!r}, not of {record.spec.template!r}",
                hint="create a sandbox from that snapshot",
            )
        if record.encrypted != kept.encrypted:
            raise Conflict(
                f"snapshot {kept.id} is {_how(kept.encrypted)}, but sandbox {record.id} is {_how(record.encrypted)}",
                hint=f"create a sandbox that begins with snapshot {kept.id}",
            )
        if record.limits.disk is not None and kept.total > record.limits.disk:
            raise QuotaExceeded(
                f"snapshot {kept.id} holds {human_size(kept.total)}, above the disk limit of "
                f"{human_size(record.limits.disk)}",
                hint="raise the limit first: set_limits(disk=…)",
            )

    def _make(self, record: Record, kept: Kept) -> None:
        """Make the new tree beside the old one. Raises DiskFull, OSError; nothing of the new tree is left then."""
        changes = self._changes
        fresh, _ = restoring_trees(changes.upper(record))
        storage = changes.storage_of(record)
        limit = None if record.limits.disk is None else record.limits.disk - kept.inherited
        try:
            storage.remove(fresh)
            storage.copy(self._snapshots.tree(kept.id), fresh, limit=limit)
        except BaseException:
            storage.remove(fresh)
            raise

    def _exchange(self, record: Record, kept: Kept) -> Record:
        """Put the new tree in the place of the old one; the sandbox has no process."""
        upper = self._changes.upper(record)
        fresh, old = restoring_trees(upper)
        storage = self._changes.storage_of(record)
        if upper.exists():
            storage.remove(old)
            upper.rename(old)
        fresh.rename(upper)
        with suppress(OSError):  # the next restore, or destroying the sandbox, removes what stays
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
        """The process that restored it died: finish the restore or, if that is not possible, keep the old files."""
        changes = self._changes
        if record.slot is None:  # the process that started it again may have died before it noted the slot
            record = dataclasses.replace(record, slot=changes.store.slot_of(record.id))
        record = changes.halt(record)
        try:
            with self._snapshots.held(record.pending_data["target"], deleted=True) as kept:
                self._make(record, kept)
                record = self._exchange(record, kept)
        except (SkerryError, OSError) as error:
            self._put_back(record)
            reason = f"its restore was interrupted and cannot be finished: {error}"[:600]
            failed = dataclasses.replace(record, state=State.FAILED, reason=reason)
            return changes.save(failed, error_event("failed", failed))
        reason = "the process that restored it died; its files are those of the snapshot"
        changes.save(record, ("restored", time.time()))
        now = time.time()
        return dataclasses.replace(record, state=State.STOPPED, stopped_at=now, last_active_at=now, reason=reason)

    def _put_back(self, record: Record) -> None:
        """Put the old tree back in its place and remove the new one, which also makes room for a name."""
        upper = self._changes.upper(record)
        fresh, old = restoring_trees(upper)
        self._changes.storage_of(record).remove(fresh)
        if old.exists() and not upper.exists():
            old.rename(upper)


def _how(encrypted: bool) -> str:
    return "encrypted" if encrypted else "not encrypted"


def _settled(record: Record) -> Record:
    return dataclasses.replace(record, pending=None, pending_data={})
