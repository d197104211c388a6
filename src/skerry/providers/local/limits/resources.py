"""The limits of sandboxes: checks that this machine can give them, and applies new ones over old ones."""

from __future__ import annotations

import dataclasses

from skerry.core import InvalidArgument, Resources, Unsupported, check_least, check_most, human_size, limits
from skerry.providers.local.limits.cgroup import Cgroups
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage.base import Storage

LEAST_DISK = 1 << 20
"""Bytes that every sandbox can write."""


def upper_limit(record: Record) -> int | None:
    """The most that the sandbox's own layer may hold."""
    return None if record.limits.disk is None else max(0, record.limits.disk - record.inherited)


def merge(old: Resources, new: Resources) -> Resources:
    """`old`, with each limit that `new` sets replaced."""
    given = {name: value for name, value in dataclasses.asdict(new).items() if value is not None}
    return dataclasses.replace(old, **given)


def check_supported(asked: Resources, storage: Storage, *, within: str = "") -> None:
    """Raises Unsupported for a kind of limit that this provider or its storage does not have.

    `within` is what the name of the option begins with.
    """
    if asked.gpu is not None:
        raise Unsupported("the local provider has no GPUs", option=f"{within}gpu")
    if asked.disk is not None:
        storage.require_limits(f"{within}disk")


def check_limits(wanted: Resources, cgroups: Cgroups) -> None:
    """The provider's one check of amounts.

    Raises QuotaExceeded for more than the configured maximum, InvalidArgument for less than works, Unsupported for a
    limit that the kernel cannot enforce.
    """
    check_most(wanted, limits())
    check_least(memory=wanted.memory, pids=wanted.pids)
    if wanted.disk is not None and wanted.disk < LEAST_DISK:
        least = human_size(LEAST_DISK)
        raise InvalidArgument(f"{human_size(wanted.disk)} of disk is too little: an empty sandbox needs {least}")
    cgroups.require(wanted)
