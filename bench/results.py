"""The results of a run, as plain data that becomes JSON."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class Crowd:
    """Many boxes, created in the same way. Seconds are from the request for a box to the end of its first command."""

    asked: int
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall: float = 0.0
    """From the first start to the last answer."""

    @property
    def answered(self) -> int:
        return len(self.seconds)


@dataclass(kw_only=True, slots=True)
class Alive:
    """Many alive at the same time."""

    asked: int
    up: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds of the second command of each, while all are alive."""
    errors: list[str] = field(default_factory=list)
    memory: int = 0
    """Bytes by which MemAvailable fell, this process's own share included."""
    client_memory: int = 0
    """Bytes by which this process grew."""
    wall: float = 0.0
    """Seconds until all were up."""

    @property
    def each(self) -> float:
        return self.memory / max(1, self.up)


@dataclass(kw_only=True, slots=True)
class Results:
    """Everything, by name of the op or of the backend; times in seconds, sizes in bytes."""

    facts: dict[str, str | int | float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    at_once: dict[str, list[Crowd]] = field(default_factory=dict)
    computesdk: dict[str, dict[str, Crowd]] = field(default_factory=dict)
    alive: dict[str, Alive] = field(default_factory=dict)
    left: list[str] | None = None
    """What was left of our sandboxes at the end; None before the check."""
