"""The limits of sandboxes: against the configured maxima, and one set over another."""

from __future__ import annotations

import dataclasses

from skerry.core.config import limits
from skerry.core.errors import InvalidArgument, QuotaExceeded
from skerry.core.models import Resources
from skerry.providers.local.record import Record

LEAST_DISK = 1 << 20
"""Bytes that every sandbox can write."""


def upper_limit(record: Record) -> int | None:
    """The most its own layer may hold."""
    return None if record.limits.disk is None else max(0, record.limits.disk - record.inherited)


def merge(old: Resources, new: Resources) -> Resources:
    """`old` with what `new` says."""
    given = {name: value for name, value in dataclasses.asdict(new).items() if value is not None}
    return dataclasses.replace(old, **given)


def check_limits(wanted: Resources) -> None:
    """Raises QuotaExceeded for more than the configured maximum, InvalidArgument for less than works."""
    allowed = limits()
    for name, value, maximum in (
        ("cpu", wanted.cpu, allowed.max_cpu),
        ("memory", wanted.memory, allowed.max_memory),
        ("disk", wanted.disk, allowed.max_disk),
        ("pids", wanted.pids, allowed.max_pids),
    ):
        if value is not None and value > maximum:
            raise QuotaExceeded(
                f"{name} {value:g} is above the maximum of {maximum:g}",
                hint=f"ask for less, or raise it with SKERRY_MAX_{name.upper()}",
            )
    if wanted.disk is not None and wanted.disk < LEAST_DISK:
        raise InvalidArgument(f"disk {wanted.disk} is below {LEAST_DISK}, which an empty sandbox needs")
