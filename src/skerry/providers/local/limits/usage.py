"""Measures what a sandbox uses of its limits."""

from __future__ import annotations

import time

from skerry.core import SandboxNotFound, Usage
from skerry.providers.local.home import Home
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.sandbox.record import Record


class Meter:
    """Measures sandboxes that run. Remembers when it last looked at each: CPU is the share since then."""

    def __init__(self, home: Home, cgroups: Cgroups) -> None:
        self._home = home
        self._cgroups = cgroups
        self._seen: dict[str, tuple[float, float]] = {}

    def usage(self, record: Record) -> Usage:
        """What a sandbox uses now. Raises SandboxNotFound where it has just ended."""
        try:
            counters = self._cgroups.counters(record.id)
        except FileNotFoundError:
            raise SandboxNotFound(f"sandbox {record.id} has just ended") from None
        used = self._home.storage_of(encrypted=record.encrypted).used(self._home.upper(record))
        now = time.monotonic()
        started = record.started_at if record.started_at is not None else record.created_at
        seen, before = self._seen.get(record.id, (now - max(0.001, time.time() - started), 0.0))
        self._seen[record.id] = (now, counters.cpu_seconds)
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

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox: its next counters begin at zero."""
        self._seen.pop(sandbox_id, None)
