"""Brings a sandbox, under its own id, back to a snapshot.

The new tree is made beside the old one while the sandbox still runs: a full disk changes nothing. Then it is noted what
is about to happen, everything is killed, and the trees are exchanged by renames. Who dies at it leaves this to the next
command: the files become those of the snapshot, and the sandbox is stopped.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.core.errors import Conflict, QuotaExceeded, SkerryError
from skerry.core.models import State
from skerry.providers.local.kept import Kept
from skerry.providers.local.record import Record

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
            ran = record.state in (State.RUNNING, State.PAUSED)
            self._check(record, kept)
            self._make(record, kept)
            lease = record.lease
            record = engine.begin(record, "restore", state=State.RESTORING, target=kept.id)
            record = self._exchange(dataclasses.replace(engine.halt(record), lease=lease), kept)
            if not ran:
                return self._settle(record, State.STOPPED)
            try:
                record = engine.bring_up(engine.save(engine.store.take_slot(record)), lock)
            except BaseException as error:
                reason = f"it did not start after its restore: {error}"[:600]
                self._settle(dataclasses.replace(engine.halt(record), reason=reason), State.FAILED)
                raise
            return self._settle(record, State.RUNNING)

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

    def _settle(self, record: Record, state: State) -> Record:
        done = dataclasses.replace(record, state=state, pending=None, pending_data={})
        return self._engine.save(done, ("restored", time.time()))

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
            return dataclasses.replace(record, state=State.FAILED, reason=reason)
        reason = "who restored it died at it; its files are those of the snapshot"
        engine.save(record, ("restored", time.time()))
        return dataclasses.replace(record, state=State.STOPPED, stopped_at=time.time(), reason=reason)

    def _put_back(self, upper: Path) -> None:
        _, old = restoring_trees(upper)
        if old.exists() and not upper.exists():
            old.rename(upper)
