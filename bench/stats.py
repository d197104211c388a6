"""Percentiles of samples, and the score of the public ComputeSDK method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SCORE_ZERO_MS = 10_000.0
"""A time-to-interactive of this many milliseconds or more scores 0."""
WEIGHTS = {50.0: 0.60, 95.0: 0.25, 99.0: 0.15}


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear between the two nearest samples. Raises ValueError for no samples or a percent outside 0 to 100."""
    if not samples:
        raise ValueError("no samples")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a table shows of samples; seconds."""

    p50: float
    p95: float
    p99: float
    min: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Raises ValueError for no samples."""
        p50, p95, p99 = (percentile(samples, percent) for percent in (50, 95, 99))
        return cls(p50, p95, p99, min(samples), len(samples))


def points(seconds: float) -> float:
    """100 for no time at all, falling evenly to 0 at ten seconds."""
    return max(0.0, 100 * (1 - seconds * 1000 / SCORE_ZERO_MS))


def score(samples: Sequence[float], asked: int) -> float:
    """The ComputeSDK score of `asked` attempts, of which `samples` are the seconds of those that succeeded."""
    if asked < 1 or len(samples) > asked:
        raise ValueError(f"{len(samples)} of {asked} succeeded")
    if not samples:
        return 0.0
    weighted = sum(weight * points(percentile(samples, percent)) for percent, weight in WEIGHTS.items())
    return weighted * len(samples) / asked
