"""One deliberate breakage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which is in `file` exactly once, becomes `new`; then `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str
