"""How much memory the machine has left, and how much this process uses."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from pathlib import Path

CALM = 2 << 20
"""Bytes within which consecutive readings count as settled."""


def meminfo(field: str) -> int:
    """A field of /proc/meminfo in bytes. Raises LookupError."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(f"/proc/meminfo has no {field}")


def own_memory() -> int:
    """Bytes of this process that nobody shares."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def give_back() -> None:
    """Return the memory that this process has freed to the kernel, so that it does not count for what comes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


async def settled_available(*, patience: float = 10.0, interval: float = 0.25) -> int:
    """MemAvailable once five readings in a row agree, or after `patience` seconds; nothing is dropped to get there."""
    readings = [meminfo("MemAvailable")]
    for _ in range(int(patience / interval)):
        await asyncio.sleep(interval)
        readings.append(meminfo("MemAvailable"))
        last = readings[-5:]
        if len(last) == 5 and max(last) - min(last) <= CALM:
            break
    return readings[-1]
