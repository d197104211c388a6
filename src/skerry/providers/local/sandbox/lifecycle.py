"""Stops, starts, freezes and resets sandboxes. Each change is noted before it begins: see `Engine.begin`.

Who dies at one of them leaves this to the next command:

    stop              finished: stopped
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
from typing import TYPE_CHECKING

from skerry.core import Changes, Conflict, Corrupted, InvalidArgument, SandboxFailed, SandboxInfo, SkerryError, State
from skerry.providers.local.launch import agent_call
from skerry.providers.local.limits.resources import merge
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.steps import Exit, Steps, complete
from skerry.providers.local.storage.bases import Base, find_base
from skerry.wire import Life, LifeReply

if TYPE_CHECKING:
    from skerry.providers.local.engine import Engine

ANSWER_TIMEOUT = 10.0
"""How long an agent may take to say that it will end."""
EXIT_MARGIN = 5.0
"""How long it may then take beyond the grace."""
WORDS_MARGIN = 1.0
"""How long one that is ending by itself may take to leave its last words."""
SNAPSHOT_LAYERS = "pool/snapshots/"


class Lifecycle:
    """What can be done to a sandbox as a whole, short of destroying it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.recovery |= {
            "stop": self._finish_stop,
            "start": self._undo_start,
            "restart": self._undo_start,
            "reset": self._finish_reset,
            "recover": self._undo_recover,
            "pause": self._run_on,
            "resume": self._run_on,
        }

    # -- stop and start

    def stop(self, sandbox_id: str, grace: float) -> SandboxInfo:
        """Let its processes end within `grace` seconds, kill the rest; files and variables stay.

        Raises SandboxNotFound, Conflict.
        """
        return complete(self.stopping(sandbox_id, grace))

    def stopping(self, sandbox_id: str, grace: float) -> Steps[SandboxInfo]:
        """`stop`, which waits for the processes between two steps."""
        with self._engine.changing(sandbox_id, "stop") as (record, _):
            if record.state is not State.ARCHIVED:
                record = yield from self.stopping_locked(record, grace)
            return record.info()

    def stopped(self, record: Record, grace: float) -> Record:
        """The same for one whose lock the caller holds; stopped: no error."""
        return complete(self.stopping_locked(record, grace))

    def stopping_locked(self, record: Record, grace: float) -> Steps[Record]:
        """`stopped`, which waits for the processes between two steps."""
        if record.state is State.STOPPED:
            return record
        record = yield from self._ending(self._engine.begin(record, "stop", state=State.STOPPING), grace)
        return self._settle(record, State.STOPPED, "stopped")

    def start(self, sandbox_id: str) -> SandboxInfo:
        """Start one that is stopped or archived, let a paused one go on.

        Raises SandboxNotFound, SandboxFailed, Conflict, Corrupted.
        """
        engine = self._engine
        with engine.changing(sandbox_id, "start", *State) as (record, lock):
            if record.state is State.FAILED:
                raise SandboxFailed(f"sandbox {sandbox_id} has failed: {record.reason}")
            engine.require("start", record)
            if record.state is State.RUNNING:
                return record.info()
            if record.state is State.PAUSED:
                return self._thaw(record).info()
            if record.state is State.ARCHIVED:
                record = engine.cold.bring_back(record, None)
            return self._start(record, lock, "start", "started").info()

    def restart(self, sandbox_id: str, changes: Changes, grace: float) -> SandboxInfo:
        """Stop it, apply `changes`, start it. Whatever can be refused is refused first.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, TemplateNotFound, InvalidArgument, Conflict.
        """
        return complete(self.restarting(sandbox_id, changes, grace))

    def restarting(self, sandbox_id: str, changes: Changes, grace: float) -> Steps[SandboxInfo]:
        """`restart`, which waits for the processes between two steps."""
        engine = self._engine
        # A new template is not to be removed until it is written down that it is needed.
        held = nullcontext() if changes.template is None else engine.templates.using()
        with engine.changing(sandbox_id, "restart") as (record, lock), held:
            base = self._check(record, changes)
            if record.state is not State.STOPPED:
                record = yield from self._ending(engine.begin(record, "restart", state=State.STOPPING), grace)
                engine.log(record, "stopped")
            # From here on it is changed, whatever happens.
            record = engine.begin(_changed(record, changes, base), "restart", state=State.RESTORING)
            self._limit_disk(record)
            return self._start(record, lock, "restart", "started").info()

    def recover(self, sandbox_id: str) -> SandboxInfo:
        """Start one that has failed with the files it had. Raises SandboxNotFound, Conflict, Corrupted."""
        with self._engine.changing(sandbox_id, "recover") as (record, lock):
            return self._start(record, lock, "recover", "recovered", otherwise=State.FAILED).info()

    def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        """Start it with no process and no changed variable of before; `hard`: with no file either.

        Raises SandboxNotFound, Conflict; SandboxFailed or Corrupted should something of before be left.
        """
        engine = self._engine
        with engine.changing(sandbox_id, "reset") as (record, lock):
            how = "hard" if hard else "soft"
            record = self._wipe(engine.begin(record, "reset", state=State.RESTORING, how=how))
            return self._start(record, lock, "reset", "reset").info()

    # -- pause and resume

    def pause(self, sandbox_id: str) -> SandboxInfo:
        """Freeze its processes. Raises SandboxNotFound, Conflict, ProviderUnavailable."""
        engine = self._engine
        with engine.changing(sandbox_id, "pause") as (record, _):
            if record.state is State.PAUSED:
                return record.info()
            with suppress(SkerryError):  # one whose agent does not answer can be paused, too
                # while it is frozen nobody can ask for them, and a snapshot needs them
                record = dataclasses.replace(record, env=engine.snapshots.environment(record))
            record = engine.begin(record, "pause")
            engine.connections.close(sandbox_id)
            try:
                with last_words.noticed(sandbox_id):
                    engine.cgroups.freeze(sandbox_id)
            except BaseException:
                self._settle(self._run_on(record), State.RUNNING)
                raise
            return self._settle(record, State.PAUSED, "paused").info()

    def resume(self, sandbox_id: str) -> SandboxInfo:
        """Let its processes go on. Raises SandboxNotFound, Conflict."""
        with self._engine.changing(sandbox_id, "resume") as (record, _):
            return record.info() if record.state is State.RUNNING else self._thaw(record).info()

    def _thaw(self, record: Record) -> Record:
        return self._settle(self._run_on(self._engine.begin(record, "resume")), State.RUNNING, "resumed")

    def _run_on(self, record: Record) -> Record:
        self._engine.cgroups.thaw(record.id)
        return self._engine.advance(record, State.RUNNING)

    # -- the parts; the caller holds the lock and has noted what it does

    def _end(self, record: Record, grace: float) -> Record:
        return complete(self._ending(record, grace))

    def _ending(self, record: Record, grace: float) -> Steps[Record]:
        """End what runs, by way of its agent: nobody else knows the variables."""
        engine = self._engine
        if record.init is None or not record.alive:
            return self._halt(record)
        engine.cgroups.thaw(record.id)
        message = Life(end=1, grace_ms=round(grace * 1000))
        try:
            agent_call.request(
                engine.socket(record.id), bytes.fromhex(record.token), message, LifeReply, timeout=ANSWER_TIMEOUT
            )
            seconds = grace + EXIT_MARGIN
        except SkerryError:
            seconds = WORDS_MARGIN  # it is ending by itself, or it hangs and is killed
        yield Exit(record.init, seconds)
        return self._halt(record)

    def _halt(self, record: Record) -> Record:
        """Nothing of it runs any more; its record says since when, and what its variables were."""
        engine = self._engine
        if record.slot is None:  # whoever started it may have died before it was noted
            record = dataclasses.replace(record, slot=engine.store.slot_of(record.id))
        # Words of an agent that the record no longer has were heard when it was ended.
        words = None if record.init is None else engine.words(record.id)
        return last_words.stopped(engine.halt(last_words.with_variables(record, words)), words)

    def _start(
        self, record: Record, lock: FileLock, pending: str, event: str, otherwise: State = State.STOPPED
    ) -> Record:
        """Bring it up; one that does not come up is `otherwise` again. Raises Corrupted before anything is done."""
        engine = self._engine
        try:
            self.require_files(record)
        except Corrupted:
            if record.pending is not None:
                self._settle(record, otherwise)
            raise
        record = engine.begin(record, pending, state=State.RESTORING, **record.pending_data)
        try:
            record = engine.bring_up(engine.save(engine.store.take_slot(record)), lock)
        except BaseException as error:
            if otherwise is State.FAILED:
                self._settle(self._undo_recover(record), otherwise)
            else:
                reason = f"it did not start: {error}"[:600]
                self._settle(dataclasses.replace(self._halt(record), reason=reason), otherwise)
            raise
        return self._settle(dataclasses.replace(record, reason=None, stopped_at=None), State.RUNNING, event)

    def _settle(self, record: Record, state: State, *events: str) -> Record:
        """The change is complete. Last words are of no use from here on; should they stay, the next start clears it."""
        record = self._engine.finish(record, state, *events)
        if state is not State.PAUSED and state is not State.RUNNING:
            self._engine.remove_words(record.id)
        return record

    def require_files(self, record: Record) -> None:
        """Raises Corrupted where something of its files is missing: an empty sandbox is not what was left."""
        engine = self._engine
        needed = [engine.upper(record.id) / "u", *(engine.store.home / layer for layer in record.lowers)]
        for path in needed:
            if not path.is_dir():
                raise Corrupted(
                    f"files of sandbox {record.id} are missing: there is no {path}",
                    hint="put them back, start anew with reset(hard=True) or restart(template=…), or destroy it",
                )

    def _check(self, record: Record, changes: Changes) -> Base | None:
        """Whether `changes` can be made; the base of a new template. Raises as `restart` does."""
        if changes.resources is not None:
            self._engine.check_resources(changes.resources)
        for name in changes.env or {}:
            if name in record.spec.secrets:
                raise InvalidArgument(f"{name} is one of its secrets, which no variable can replace")
        if changes.template is None:
            return None
        if any(layer.startswith(SNAPSHOT_LAYERS) for layer in record.lowers):
            raise Conflict(
                f"sandbox {record.id} was made from a snapshot of the template {record.spec.template!r}",
                hint="create a new sandbox from the other template and copy the files",
            )
        return find_base(self._engine.store, changes.template)

    def _limit_disk(self, record: Record) -> None:
        """The limit of its own layer, which a restart may have changed."""
        engine, limit = self._engine, record.limits.disk
        if limit is not None and engine.upper(record.id).exists():
            engine.storage.set_limit(engine.upper(record.id), max(0, limit - record.inherited))

    def _wipe(self, record: Record) -> Record:
        """End everything, forget changed variables and, for a hard reset, files; and see that it is so."""
        engine = self._engine
        first, upper = record.init, engine.upper(record.id)
        record = dataclasses.replace(self._halt(record), env=None)
        if (first is not None and first.alive()) or engine.cgroups.exists(record.id):
            raise SandboxFailed(f"processes of sandbox {record.id} have outlived its reset")
        if record.pending_data["how"] == "hard":
            engine.storage.remove(upper)
            engine.make_upper(record)
            if record.seed is None and os.listdir(upper / "u"):
                raise Corrupted(f"files of sandbox {record.id} have outlived its reset", hint=f"see {upper}")
            record = dataclasses.replace(record, snapshot=record.spec.snapshot)
        return record

    # -- after a crash

    def _finish_stop(self, record: Record) -> Record:
        record = self._engine.advance(self._end(record, 0.0), State.STOPPED)
        why = record.pending_data.get("why")
        self._engine.log(record, "stopped", at=record.stopped_at, data={"reason": why} if why else None)
        return record

    def _undo_start(self, record: Record) -> Record:
        reason = "who started it again died at it"
        if record.pending == "restart":
            self._limit_disk(record)
        return self._engine.advance(dataclasses.replace(self._end(record, 0.0), reason=reason), State.STOPPED)

    def _finish_reset(self, record: Record) -> Record:
        reason = "who reset it died at it; it is clean"
        return self._engine.advance(dataclasses.replace(self._wipe(record), reason=reason), State.STOPPED)

    def _undo_recover(self, record: Record) -> Record:
        """Failed as before: that it was tried changes neither its reason nor when it ends."""
        kept = dataclasses.replace(
            self._halt(record), reason=record.reason, expires_at=record.expires_at, deadline=record.deadline
        )
        return self._engine.advance(kept, State.FAILED)


def _changed(record: Record, changes: Changes, base: Base | None) -> Record:
    """The record with all of `changes`."""
    before = {**record.base_env, **record.spec.env} if record.env is None else record.env
    if base is not None:
        # What the old template had set and nobody has changed goes with it.
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
    if changes.resources is not None:
        record = dataclasses.replace(record, limits=merge(record.limits, changes.resources))
    return dataclasses.replace(record, env={**before, **(changes.env or {})})
