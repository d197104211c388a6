"""Changes a running sandbox's timeout, lease and limits."""

from __future__ import annotations

import dataclasses
import time

from skerry.core import Resources, SandboxInfo, check_lifetime
from skerry.providers.local.host import ProcessId, boot_id, boottime
from skerry.providers.local.limits.resources import check_limits, check_supported, merge
from skerry.providers.local.sandbox.changes import Changes
from skerry.providers.local.sandbox.lookup import Lookup
from skerry.providers.local.sandbox.record import Record


class Settings:
    """Raises SandboxNotFound, SandboxStopped, SandboxFailed for a sandbox that does not run."""

    def __init__(self, changes: Changes, lookup: Lookup) -> None:
        self._changes = changes
        self._lookup = lookup

    def _update(self, sandbox_id: str, **values: object) -> Record:
        self._lookup.running(sandbox_id)
        with self._changes.lock(sandbox_id, "change") as (record, _):
            return self._changes.save(dataclasses.replace(record, **values))  # type: ignore[arg-type]

    def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        """Raises QuotaExceeded for more than the longest lifetime."""
        check_lifetime(seconds)
        deadline, wall = boottime() + seconds, time.time() + seconds
        return self._update(sandbox_id, deadline=deadline, expires_at=wall, boot=boot_id()).info()

    def record_lease(self, sandbox_id: str, held: bool) -> None:
        """Whether this process holds it."""
        if held:
            self._update(sandbox_id, lease=ProcessId.mine())
        else:
            leased = self._changes.store.read(sandbox_id).spec.leased  # never changes
            self._update(sandbox_id, lease=None, prepared=leased)

    def set_limits(self, sandbox_id: str, wanted: Resources) -> SandboxInfo:
        """Raises Unsupported, QuotaExceeded, InvalidArgument."""
        changes = self._changes
        record = self._lookup.running(sandbox_id)
        check_supported(wanted, changes.storage_of(record))
        check_limits(wanted, changes.cgroups)
        with changes.lock(sandbox_id, "change") as (record, _):
            changes.cgroups.set_limits(sandbox_id, wanted)
            if wanted.disk is not None:
                left = max(0, wanted.disk - record.inherited)
                changes.storage_of(record).set_limit(changes.upper(record), left)
            return changes.save(dataclasses.replace(record, limits=merge(record.limits, wanted))).info()
