"""Counters, gauges and histograms in the text format of Prometheus."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from skerry.core import Room, SkerryError, State

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Durations in seconds, in exact counts."""

    def __init__(self) -> None:
        self._slots = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._slots[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        total = 0
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self._slots, strict=True):
            total += count
            yield f"{name}_bucket{_text((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_text(labels)} {self._sum:.6f}"
        yield f"{name}_count{_text(labels)} {total}"


class Metrics:
    """What this process counts. Only the event loop uses it. Every label has few values, whatever clients send."""

    def __init__(self) -> None:
        self._requests: Counter[Labels] = Counter()
        self._sockets: Counter[Labels] = Counter()
        self._durations: dict[Labels, Histogram] = {}
        self._creations = Histogram()
        self._creation_failures: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """Requests and sockets that ended with an error, by its code."""
        self.commands: Counter[str] = Counter(http=0, wire=0)
        """Commands, processes and terminals that clients asked for, by the way they asked."""
        self.bytes: Counter[str] = Counter(received=0, sent=0)
        """Bytes of bodies and of messages on sockets."""
        self.open: Counter[str] = Counter(requests=0, sockets=0, event_streams=0)
        """How many of a kind are open now."""
        self.webhooks: Counter[str] = Counter(delivered=0, failed=0)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        named: Labels = (("method", method if method in _METHODS else "other"), ("route", route))
        self._requests[(*named, ("status", str(status)))] += 1
        self._durations.setdefault(named, Histogram()).add(seconds)

    def socket(self, route: str, status: int) -> None:
        self._sockets[("route", route), ("status", str(status))] += 1

    @contextmanager
    def creation(self) -> Iterator[None]:
        """Around the creation of a sandbox."""
        began = time.perf_counter()
        try:
            yield
        except SkerryError as error:
            self._creation_failures[error.code] += 1
            raise
        self._creations.add(time.perf_counter() - began)

    def text(self, sandboxes: Mapping[State, int], room: Room | None) -> str:
        """All metrics, with what only others know as they are now."""
        creation = "skerry_sandbox_creation_seconds"
        return "\n".join(
            (
                *_family("skerry_sandboxes", "Sandboxes by state.", _by("state", sandboxes), kind="gauge"),
                *_head(creation, "How long it took to make a sandbox.", "histogram"),
                *self._creations.lines(creation, ()),
                *_family(
                    "skerry_sandbox_creation_failures_total",
                    "Sandboxes that could not be made, by the code of the error.",
                    _by("code", self._creation_failures),
                ),
                *_family(
                    "skerry_failures_total",
                    "Requests and sockets that ended with an error, by its code.",
                    _by("code", self.failures),
                ),
                *_family(
                    "skerry_commands_total",
                    "Commands, processes and terminals that clients asked for.",
                    _by("api", self.commands),
                ),
                *_family("skerry_bytes_total", "Bytes of bodies and of socket messages.", _by("direction", self.bytes)),
                *_family("skerry_http_requests_total", "Requests by route and status.", self._requests),
                *_head("skerry_http_request_seconds", "How long requests took.", "histogram"),
                *(
                    line
                    for labels, durations in sorted(self._durations.items())
                    for line in durations.lines("skerry_http_request_seconds", labels)
                ),
                *_family("skerry_sockets_total", "WebSockets that have ended, by route and status.", self._sockets),
                *_family("skerry_open", "What is open now.", _by("kind", self.open), kind="gauge"),
                *_family("skerry_webhook_deliveries_total", "Deliveries to webhooks.", _by("outcome", self.webhooks)),
                *_room(room),
                *_process(),
                "",
            )
        )


def _room(room: Room | None) -> Iterator[str]:
    if room is None:
        return
    for name, help, value in (
        ("sandboxes_memory_bytes", "Memory that all sandboxes use together.", room.memory_used),
        ("storage_size_bytes", "Size of the storage of sandboxes.", room.disk_size),
        ("storage_used_bytes", "Bytes used in the storage of sandboxes.", room.disk_used),
        ("storage_free_bytes", "Bytes that can still be written to the storage of sandboxes.", room.disk_free),
    ):
        if value is not None:
            yield from _family(f"skerry_{name}", help, {(): value}, kind="gauge")


def _process() -> Iterator[str]:
    """The names that Prometheus's own clients use for a process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # the name before it may contain spaces
    descriptors = len(os.listdir("/proc/self/fd"))
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / _TICKS
    resident, virtual = int(fields[21]) * _PAGE, int(fields[20])
    spent = (int(fields[11]) + int(fields[12])) / _TICKS
    yield from _family("process_resident_memory_bytes", "Memory of the server.", {(): resident}, kind="gauge")
    yield from _family("process_virtual_memory_bytes", "Address space of the server.", {(): virtual}, kind="gauge")
    yield from _family("process_open_fds", "Open files of the server.", {(): descriptors}, kind="gauge")
    yield from _family("process_cpu_seconds_total", "Processor time of the server.", {(): spent})
    yield from _family("process_start_time_seconds", "When the server started.", {(): round(started, 2)}, kind="gauge")


def _by(label: str, counts: Mapping[str, int] | Mapping[State, int]) -> dict[Labels, int]:
    return {((label, str(value)),): count for value, count in counts.items()}


def _family(name: str, help: str, samples: Mapping[Labels, float], *, kind: str = "counter") -> Iterable[str]:
    yield from _head(name, help, kind)
    for labels, value in sorted(samples.items()):
        yield f"{name}{_text(labels)} {value!r}"


def _head(name: str, help: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"


def _text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
