"""Stops, starts, freezes and resets sandboxes. Each change is noted before it begins: see `Changes.begin`.

If the process dies mid-operation, the next command recovers the sandbox:

    stop              finished: stopped (`stop.py`)
    start, restart    stopped; what a restart was to change is changed as a whole or not at all
    reset             finished but for the start: stopped, clean
    recover           undone: failed
    pause             undone: running
    resume            finished: running
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import nullcontext, suppress

from skerry.core import Changes as RestartChanges
from skerry.core import Conflict, Corrupted, InvalidArgument, SandboxFailed, SandboxInfo, SkerryError, State
from skerry.providers.local.limits.resources import check_limits, check_supported, merge
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.archive import Archives
from skerry.providers.local.sandbox.capture import Capture
from skerry.providers.local.sandbox.changes import Changes, Recoveries
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.sandbox.stop import Stop
from skerry.providers.local.steps import Steps, complete
from skerry.providers.local.storage.bases import Base, find_base
from skerry.providers.local.storage.layers import Templates
from skerry.providers.local.storage.snapshots import snapshots_in


class Lifecycle:
    """What can be done to a sandbox as a whole, short of destroying it."""

    def __init__(
        self, changes: Changes, stop: Stop, archives: Archives, capture: Capture, templates: Templates
    ) -> None:
        self._changes = changes
        self._stop = stop
        self._archives = archives
        self._capture = capture
        self._templates = templates

    def recoveries(self) -> Recoveries:
        return {
            "start": self._undo_start,
            "restart": self._undo_start,
            "reset": self._finish_reset,
            "recover": self._undo_recover,
            "pause": self._run_on,
            "resume": self._run_on,
        }

    # -- stop and start

    def stop(self, sandbox_id: str, grace: float) -> SandboxInfo:
        """Let a sandbox's processes end within `grace` seconds, kill the rest; files and variables stay.

        Raises SandboxNotFound, Conflict.
        """
        return complete(self.stopping(sandbox_id, grace))

    def stopping(self, sandbox_id: str, grace: float) -> Steps[SandboxInfo]:
        """`stop`, which waits for the processes between two steps."""
        with self._changes.lock(sandbox_id, "stop") as (record, _):
            if record.state is not State.ARCHIVED:
                record = yield from self._stop.stopping(record, grace)
            return record.info()

    def start(self, sandbox_id: str) -> SandboxInfo:
        """Start a stopped or archived sandbox, or resume a paused one.

        Raises SandboxNotFound, SandboxFailed, Conflict, Corrupted.
        """
        changes = self._changes
        with changes.lock(sandbox_id, "start", *State) as (record, lock):
            if record.state is State.FAILED:
                raise SandboxFailed(f"sandbox {sandbox_id} has failed: {record.reason}")
            changes.require("start", record)
            if record.state is State.RUNNING:
                return record.info()
            if record.state is State.PAUSED:
                return self._thaw(record).info()
            if record.state is State.ARCHIVED:
                record = self._archives.bring_back(record, None)
            return self._start(record, lock, "start", "started").info()

    def restart(self, sandbox_id: str, wanted: RestartChanges, grace: float) -> SandboxInfo:
        """Stop a sandbox, apply `wanted`, start it. What can be refused is refused first.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, TemplateNotFound, InvalidArgument, Conflict.
        """
        return complete(self.restarting(sandbox_id, wanted, grace))

    def restarting(self, sandbox_id: str, wanted: RestartChanges, grace: float) -> Steps[SandboxInfo]:
        """`restart`, which waits for the processes between two steps."""
        changes = self._changes
        # Nobody may remove a new template until a record names it.
        held = nullcontext() if wanted.template is None else self._templates.using()
        with changes.lock(sandbox_id, "restart") as (record, lock), held:
            base = self._check(record, wanted)
            if record.state is not State.STOPPED:
                record = yield from self._stop.ending(changes.begin(record, "restart", state=State.STOPPING), grace)
                changes.log(record, "stopped")
            # From here on the sandbox is changed, whatever happens.
            record = changes.begin(_changed(record, wanted, base), "restart", state=State.RESTORING)
            self._limit_disk(record)
            return self._start(record, lock, "restart", "started").info()

    def recover(self, sandbox_id: str) -> SandboxInfo:
        """Start a failed sandbox with the files it had. Raises SandboxNotFound, Conflict, Corrupted."""
        with self._changes.lock(sandbox_id, "recover") as (record, lock):
            return self._start(record, lock, "recover", "recovered", otherwise=State.FAILED).info()

    def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        """Start a sandbox without its processes and changed variables; with `hard`, also without its files.

        Raises SandboxNotFound, Conflict; SandboxFailed or Corrupted if a process or a file is left.
        """
        changes = self._changes
        with changes.lock(sandbox_id, "reset") as (record, lock):
            changes.storage_of(record)  # raises while its disk is locked
            how = "hard" if hard else "soft"
            record = self._wipe(changes.begin(record, "reset", state=State.RESTORING, how=how))
            return self._start(record, lock, "reset", "reset").info()

    # -- pause and resume

    def pause(self, sandbox_id: str) -> SandboxInfo:
        """Freeze the sandbox's processes. Raises SandboxNotFound, Conflict, ProviderUnavailable."""
        changes = self._changes
        with changes.lock(sandbox_id, "pause") as (record, _):
            if record.state is State.PAUSED:
                return record.info()
            with suppress(SkerryError):  # a sandbox whose agent does not answer can be paused, too
                # a frozen agent cannot report its variables, and a snapshot needs them
                record = dataclasses.replace(record, env=self._capture.environment(record))
            record = changes.begin(record, "pause")
            changes.connections.close(sandbox_id)
            try:
                with last_words.ended_is_failure(sandbox_id):
                    changes.cgroups.freeze(sandbox_id)
            except BaseException:
                self._stop.settle(self._run_on(record), State.RUNNING)
                raise
            return self._stop.settle(record, State.PAUSED, "paused").info()

    def resume(self, sandbox_id: str) -> SandboxInfo:
        """Let the sandbox's processes continue. Raises SandboxNotFound, Conflict."""
        with self._changes.lock(sandbox_id, "resume") as (record, _):
            return record.info() if record.state is State.RUNNING else self._thaw(record).info()

    def _thaw(self, record: Record) -> Record:
        return self._stop.settle(self._run_on(self._changes.begin(record, "resume")), State.RUNNING, "resumed")

    def _run_on(self, record: Record) -> Record:
        self._changes.cgroups.thaw(record.id)
        return self._changes.advance(record, State.RUNNING)

    # -- the parts; the caller holds the lock and has noted what it does

    def _start(
        self, record: Record, lock: FileLock, pending: str, event: str, otherwise: State = State.STOPPED
    ) -> Record:
        """Start the sandbox; if that fails, its state is `otherwise`. Raises Corrupted before anything is done."""
        changes = self._changes
        try:
            changes.require_files(record)
        except Corrupted:
            if record.pending is not None:
                self._stop.settle(record, otherwise)
            raise
        record = changes.begin(record, pending, state=State.RESTORING, **record.pending_data)
        try:
            record = changes.bring_up(changes.save(changes.store.take_slot(record)), lock)
        except BaseException as error:
            if otherwise is State.FAILED:
                self._stop.settle(self._undo_recover(record), otherwise)
            else:
                reason = f"it did not start: {error}"[:600]
                self._stop.settle(dataclasses.replace(self._stop.halt(record), reason=reason), otherwise)
            raise
        return self._stop.settle(dataclasses.replace(record, reason=None, stopped_at=None), State.RUNNING, event)

    def _check(self, record: Record, wanted: RestartChanges) -> Base | None:
        """Check that `wanted` can be done; returns the base of a new template. Raises as `restart` does."""
        storage = self._changes.storage_of(record)
        if wanted.resources is not None:
            check_supported(wanted.resources, storage)
            check_limits(wanted.resources, self._changes.cgroups)
        for name in wanted.env or {}:
            if name in record.spec.secrets:
                raise InvalidArgument(f"{name} is a secret of the sandbox, which no variable can replace")
        if wanted.template is None:
            return None
        if snapshots_in(record.lowers):
            raise Conflict(
                f"sandbox {record.id} was made from a snapshot of the template {record.spec.template!r}",
                hint="create a new sandbox from the other template and copy the files",
            )
        return find_base(self._changes.store, wanted.template)

    def _limit_disk(self, record: Record) -> None:
        """Set the limit of the sandbox's writable layer, which a restart may have changed."""
        changes, limit = self._changes, record.limits.disk
        if limit is not None and changes.upper(record).exists():
            changes.storage_of(record).set_limit(changes.upper(record), max(0, limit - record.inherited))

    def _wipe(self, record: Record) -> Record:
        """End every process, forget changed variables and, for a hard reset, files; then check that they are gone."""
        changes = self._changes
        first, upper = record.init, changes.upper(record)
        record = dataclasses.replace(self._stop.halt(record), env=None)
        if (first is not None and first.alive()) or changes.cgroups.exists(record.id):
            raise SandboxFailed(f"processes of sandbox {record.id} have outlived its reset")
        if record.pending_data["how"] == "hard":
            changes.storage_of(record).remove(upper)
            changes.make_upper(record)
            if record.seed is None and os.listdir(upper / "u"):
                raise Corrupted(f"files of sandbox {record.id} have outlived its reset", hint=f"see {upper}")
            record = dataclasses.replace(record, snapshot=record.spec.snapshot)
        return record

    # -- after a crash

    def _undo_start(self, record: Record) -> Record:
        reason = "the process that started it again died"
        if record.pending == "restart":
            self._limit_disk(record)
        return self._changes.advance(dataclasses.replace(self._stop.end(record), reason=reason), State.STOPPED)

    def _finish_reset(self, record: Record) -> Record:
        reason = "the process that reset it died; it is clean"
        return self._changes.advance(dataclasses.replace(self._wipe(record), reason=reason), State.STOPPED)

    def _undo_recover(self, record: Record) -> Record:
        """Failed as before: the attempt changes neither its reason nor when it ends."""
        kept = dataclasses.replace(
            self._stop.halt(record), reason=record.reason, expires_at=record.expires_at, deadline=record.deadline
        )
        return self._changes.advance(kept, State.FAILED)


def _changed(record: Record, wanted: RestartChanges, base: Base | None) -> Record:
    """The record with all of `wanted`."""
    before = {**record.base_env, **record.spec.env} if record.env is None else record.env
    if base is not None:
        # A variable that the old template set and nobody changed goes with that template.
        own = {name: value for name, value in before.items() if record.base_env.get(name) != value}
        before = {**base.env, **own}
        record = dataclasses.replace(
            record,
            spec=dataclasses.replace(record.spec, template=base.template),
            user=record.spec.user or base.user,
            workdir=record.spec.workdir or base.workdir,
            ports=base.ports,
            base_env=base.env,
            lowers=base.layers,
            host=base.host,
        )
    if wanted.resources is not None:
        record = dataclasses.replace(record, limits=merge(record.limits, wanted.resources))
    return dataclasses.replace(record, env={**before, **(wanted.env or {})})
