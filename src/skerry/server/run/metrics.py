"""Counters in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of this process. Only the event loop uses them."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], list[float]] = {}
        self._counters: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        """How many of a kind are open now: requests, sockets, streams."""

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, str(status)] += 1
        slots = self._durations.setdefault((method, route), [0.0] * (len(BUCKETS) + 2))
        slots[bisect_left(BUCKETS, seconds)] += 1
        slots[-1] += seconds

    def count(self, name: str, amount: int = 1) -> None:
        self._counters[name] += amount

    def text(self, gauges: Mapping[str, float]) -> str:
        """All metrics, with `gauges` as they are now."""
        lines = ["# TYPE skerry_http_requests_total counter"]
        for (method, route, status), count in sorted(self._requests.items()):
            lines.append(f"skerry_http_requests_total{_labels(method=method, route=route, status=status)} {count}")
        lines.append("# TYPE skerry_http_request_seconds histogram")
        for (method, route), slots in sorted(self._durations.items()):
            lines += _histogram(slots, {"method": method, "route": route})
        for name, count in sorted(self._counters.items()):
            lines += [f"# TYPE skerry_{name}_total counter", f"skerry_{name}_total {count}"]
        for kind, count in sorted(self.open.items()):
            lines += [f"# TYPE skerry_open_{kind} gauge", f"skerry_open_{kind} {count}"]
        for name, value in sorted(gauges.items()):
            family = name.partition("{")[0]
            if f"# TYPE skerry_{family} gauge" not in lines:
                lines.append(f"# TYPE skerry_{family} gauge")
            lines.append(f"skerry_{name} {value!r}")
        return "\n".join(lines) + "\n"


def _histogram(slots: list[float], labels: dict[str, str]) -> Iterable[str]:
    total = 0
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], slots, strict=False):
        total += int(count)
        yield f"skerry_http_request_seconds_bucket{_labels(**labels, le=bound)} {total}"
    yield f"skerry_http_request_seconds_sum{_labels(**labels)} {slots[-1]:.6f}"
    yield f"skerry_http_request_seconds_count{_labels(**labels)} {total}"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
