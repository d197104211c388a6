"""Finds sandboxes and their present state, and sweeps those whose end has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from skerry.core import (
    Corrupted,
    NewerVersion,
    SandboxFailed,
    SandboxInfo,
    SandboxNotFound,
    SandboxStopped,
    SkerryError,
    State,
)
from skerry.providers.local.home import Home
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.record import Record


class Lookup:
    """The sandboxes of one SKERRY_HOME, by id or name."""

    def __init__(self, home: Home, *, sweep_one: Callable[[str], object]) -> None:
        self._home = home
        self._store = home.store
        self._sweep_one = sweep_one

    def look(self, sandbox_id: str) -> tuple[Record, bool]:
        """The record as it is written, and whether it is up to date; if not, `current` finds out more.

        Waits for nothing. Raises SandboxNotFound, Corrupted.
        """
        record = self._store.read(sandbox_id)
        return record, last_words.settled(record)

    def look_up(self, id_or_name: str) -> tuple[Record, bool]:
        """The same, by id or name. Raises SandboxNotFound, Conflict, Corrupted."""
        self._home.prepare()
        return self.look(self._store.resolve(id_or_name))

    def look_at_all(self, sandbox_ids: Sequence[str] | None = None) -> dict[str, tuple[Record, bool]]:
        """What `look` says of these sandboxes, or of all, by id; for a damaged record its stand-in."""
        self._home.prepare()
        found = {}
        for sandbox_id in list(self._store.ids()) if sandbox_ids is None else sandbox_ids:
            try:
                found[sandbox_id] = self.look(sandbox_id)
            except SandboxNotFound:
                continue
            except (Corrupted, NewerVersion) as error:
                found[sandbox_id] = self._store.guess(sandbox_id, str(error)), True
        return found

    def current(self, sandbox_id: str) -> Record:
        """The record as it is now: a dead sandbox is swept or found failed. Raises SandboxNotFound, Corrupted."""
        record, settled = self.look(sandbox_id)
        if settled:
            return record
        try:
            self._sweep_one(sandbox_id)
        except (SkerryError, OSError) as error:
            record = self._store.read(sandbox_id)
            over = not record.alive or record.expired() or record.abandoned()
            if over and record.state in (State.RUNNING, State.PAUSED):
                reason = f"it is due to end, but cannot be ended: {error}"[:600]
                return dataclasses.replace(record, state=State.FAILED, reason=reason)
            return record
        return self._store.read(sandbox_id)

    def running(self, sandbox_id: str) -> Record:
        """The record of a running sandbox. Raises SandboxNotFound, SandboxStopped, SandboxFailed."""
        return require_running(self.current(sandbox_id))

    def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox, the oldest first."""
        found = []
        for sandbox_id, (record, settled) in self.look_at_all().items():
            try:
                found.append((record if settled else self.current(sandbox_id)).info())
            except SandboxNotFound:
                continue
            except (Corrupted, NewerVersion) as error:
                found.append(self._store.guess(sandbox_id, str(error)).info())
        return sorted(found, key=lambda info: info.created_at)


def require_running(record: Record) -> Record:
    """The record. Raises SandboxStopped, SandboxFailed unless the sandbox runs."""
    if record.state is State.FAILED:
        raise SandboxFailed(f"sandbox {record.id} has failed: {record.reason}")
    if record.state is not State.RUNNING:
        because = f": {record.reason}" if record.reason else ""
        hint = "resume it" if record.state is State.PAUSED else None
        raise SandboxStopped(f"sandbox {record.id} is {record.state}{because}", hint=hint)
    return record
