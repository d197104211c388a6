"""The benchmark's arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import stats


def test_percentile_is_linear_between_neighbours() -> None:
    assert stats.percentile([4, 1, 3, 2], 50) == 2.5
    assert stats.percentile([0, 10], 95) == pytest.approx(9.5)
    assert stats.percentile([1, 2, 3], 0) == 1
    assert stats.percentile([1, 2, 3], 100) == 3
    assert stats.percentile([7], 99) == 7


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses_nonsense(samples: list[float], percent: float) -> None:
    with pytest.raises(ValueError):
        stats.percentile(samples, percent)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100), st.floats(0, 100))
def test_percentile_grows_with_the_percentage_and_stays_within(samples: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert stats.percentile(samples, low) <= stats.percentile(samples, high) * (1 + 1e-12)
    assert min(samples) <= stats.percentile(samples, low) * (1 + 1e-12)


def test_summary_has_the_least_and_the_count() -> None:
    summary = stats.Summary.of([3.0, 1.0, 2.0])
    assert (summary.p50, summary.min, summary.n) == (2.0, 1.0, 3)


def test_points_fall_evenly_to_nothing_at_ten_seconds() -> None:
    assert [stats.points(seconds) for seconds in (0, 2.5, 10, 60)] == [100, 75, 0, 0]


def test_score_weighs_median_and_tail() -> None:
    assert stats.score([1.0] * 100, 100) == pytest.approx(90)
    seconds = [number / 100 for number in range(101)]  # p50 0.5 s, p95 0.95 s, p99 0.99 s
    assert stats.score(seconds, 101) == pytest.approx(0.60 * 95 + 0.25 * 90.5 + 0.15 * 90.1)


def test_score_is_multiplied_by_the_success_rate() -> None:
    assert stats.score([0.0] * 50, 100) == pytest.approx(50)
    assert stats.score([], 100) == 0


@pytest.mark.parametrize(("count", "asked"), [(0, 0), (2, 1)])
def test_score_refuses_impossible_counts(count: int, asked: int) -> None:
    with pytest.raises(ValueError):
        stats.score([0.1] * count, asked)
