"""Rate limits by token buckets, and limits on how much a client may have open at once."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

MOST = 50_000
"""Above this number of buckets, full ones are forgotten."""


def party(address: str) -> str:
    """The client that an address stands for: for IPv6, the network of 2^64 addresses that one subscriber has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


class Counts:
    """At most `most` at once for each key."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Take a place, to be given back by `leave`; False: all places are taken."""
        count = self._open.get(key, 0)
        if count >= self.most:
            return False
        self._open[key] = count + 1
        return True

    def leave(self, key: str) -> None:
        left = self._open[key] - 1
        if left:
            self._open[key] = left
        else:
            del self._open[key]


class Buckets:
    """On average `rate` a second, `burst` at once, for each key."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, max(1, burst), clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> float:
        """Take a token: 0, or the seconds until there is one. A rate of 0 means no limit."""
        if not self._rate:
            return 0.0
        now = self._clock()
        left, at = self._buckets.get(key, (float(self._burst), now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            self._buckets[key] = (left, now)
            return (1 - left) / self._rate
        self._buckets[key] = (left - 1, now)
        if len(self._buckets) > MOST:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        full = [key for key, (left, at) in self._buckets.items() if left + (now - at) * self._rate >= self._burst]
        for key in full or list(self._buckets)[: MOST // 2]:
            del self._buckets[key]
