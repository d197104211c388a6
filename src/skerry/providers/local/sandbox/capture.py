"""Takes snapshots of sandboxes: copies the tree of a sandbox while everything in it stands still.

If the process dies in the middle, the next command thaws the sandbox; the sweep removes an incomplete snapshot.
"""

from __future__ import annotations

import dataclasses

from skerry.core import Conflict, State
from skerry.providers.local.launch import agent_call
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.changes import Changes, Recoveries
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import host_layer
from skerry.providers.local.storage.snapshot_record import Kept
from skerry.providers.local.storage.snapshots import Snapshots
from skerry.wire import Env, EnvReply

ANSWER_TIMEOUT = 30.0
"""How long an agent may take to report its variables, in seconds."""


class Capture:
    """Makes what `storage/snapshots.py` keeps."""

    def __init__(self, changes: Changes, snapshots: Snapshots) -> None:
        self._changes = changes
        self._snapshots = snapshots

    def recoveries(self) -> Recoveries:
        return {"snapshot": self._recover}

    def take(self, sandbox_id: str, *, name: str | None, description: str, hidden: bool) -> Kept:
        """Keep what a sandbox has now; a running one stands still during the copy.

        A hidden snapshot is leased to this process.

        Raises SandboxNotFound, Conflict, DiskFull.
        """
        changes, snapshots = self._changes, self._snapshots
        allowed = (State.RUNNING, State.PAUSED, State.STOPPED, State.FAILED, State.ARCHIVED)
        with changes.lock(sandbox_id, "snapshot", *allowed) as (record, _):
            if record.state is State.ARCHIVED:
                raise Conflict(f"cannot snapshot sandbox {sandbox_id}: it is archived", hint="start it first")
            env = self.environment(record)
            made = snapshots.announce(record, env, name, description, hidden)
            try:
                changes.begin(record, "snapshot", taken=made.id)
                self._copy(record, made)
                made = snapshots.complete(made)
            except BaseException:
                snapshots.discard(made.id)
                changes.save(record)
                raise
            if hidden:
                changes.save(record)
            else:
                changes.save(dataclasses.replace(record, snapshot=made.id), ("snapshot_created", made.created_at))
        return made

    def environment(self, record: Record) -> dict[str, str]:
        """The variables without the secrets: those in force in a running sandbox, else those it stopped or paused with.

        Raises ConnectionLost, Corrupted.
        """
        if record.state is State.RUNNING:
            path, token = self._changes.socket(record.id), bytes.fromhex(record.token)
            reply = agent_call.request(path, token, Env(), EnvReply, timeout=ANSWER_TIMEOUT)
            pairs = (item.decode("utf-8", "surrogateescape").partition("=") for item in reply.env)
            ours = {**last_words.AGENTS_OWN, **host_layer.environment()}
            found = {name: value for name, _, value in pairs if ours.get(name) != value}
        else:
            found = record.env if record.env is not None else {**record.base_env, **record.spec.env}
        return {name: value for name, value in found.items() if name not in record.spec.secrets}

    def _copy(self, record: Record, made: Kept) -> None:
        """Raises DiskFull, OSError, SandboxFailed where it has just ended."""
        changes = self._changes
        running = record.state is State.RUNNING
        try:
            if running:
                with last_words.ended_is_failure(record.id):
                    dirty = changes.cgroups.dirty(record.id)
                changes.storage_of(record).settle(dirty)  # before everything stands still, not during
                with last_words.ended_is_failure(record.id):
                    changes.cgroups.freeze(record.id)
            tree = self._snapshots.tree(made.id)
            changes.storage_of(record).copy(changes.upper(record), tree, read_only=True)
        finally:
            if running:
                changes.cgroups.thaw(record.id)

    def _recover(self, record: Record) -> Record:
        """The process that took this snapshot died: thaw the sandbox."""
        if record.state is State.RUNNING:
            self._changes.cgroups.thaw(record.id)
        made = self._snapshots.recorded(record.pending_data["taken"])
        if made is not None and made.ready and not made.hidden:
            return dataclasses.replace(record, snapshot=made.id)
        return record
