"""Defaults and maxima, each from the environment or built in, and the parsing of sizes and times."""

from __future__ import annotations

import math
import os
import re
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry._model import Model
from skerry.core.errors import InvalidArgument, QuotaExceeded

if TYPE_CHECKING:
    from skerry.core.models import Resources

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {unit + "ib": 1024**power for power, unit in enumerate("kmgt", start=1)}
_UNITS |= {unit + "b": 1000**power for power, unit in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(value: int | str, what: str = "size") -> int:
    """Bytes from an int or from text such as "512MB" or "2GiB". Raises InvalidArgument."""
    if type(value) not in (int, str):
        raise InvalidArgument(f"{what} must be bytes or text such as '2GB', not {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value)
        if not match or match[2].lower() not in _UNITS:
            raise InvalidArgument(f"{what} {value!r} is not a size", hint="write it like 512MB or 2GiB")
        exact = float(match[1]) * _UNITS[match[2].lower()]
        size = int(exact) if exact < 2**63 else 0
    if not 0 < size < 2**63:
        raise InvalidArgument(f"{what} must be above 0 and below 8 EiB, not {str(value)[:40]!r}")
    return size


def human_size(count: int) -> str:
    """A size that a person reads at a glance: 850 kB, 16 GB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


_DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""In the order in which a duration has them."""
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _DURATION_UNITS))
Seconds = float | str
"""A number of seconds, or text such as "90s", "1h30m" or "500ms"."""


def parse_duration(text: str, what: str = "timeout") -> float:
    """Seconds from text such as "90", "90s", "1h30m" or "500ms". Raises InvalidArgument."""
    try:
        return float(text)
    except ValueError:
        match = _DURATION.fullmatch(text.strip().lower())
    if not match or not any(match.groups()):
        raise InvalidArgument(f"{what} {text[:40]!r} is not a duration", hint="write it like 90s, 1h30m or 500ms")
    return sum(float(count or 0) * unit for count, unit in zip(match.groups(), _DURATION_UNITS.values(), strict=True))


def human_duration(seconds: float) -> str:
    """A duration as `parse_duration` reads it, to the millisecond: 2h, 1m30s, 500ms."""
    left, text = round(seconds * 1000), ""
    for unit, size in _DURATION_UNITS.items():
        count, left = divmod(left, round(size * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def check_seconds(value: Seconds, what: str = "timeout") -> float:
    """A finite number of seconds above 0. Raises InvalidArgument."""
    seconds = parse_duration(value, what) if isinstance(value, str) else value
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidArgument(
            f"{what} must be a number of seconds above 0, or text such as '90s' or '2h', not {value!r}"
        )
    return float(seconds)


def check_cores(cpu: float) -> float:
    """A number of CPU cores. Raises InvalidArgument."""
    if type(cpu) not in (int, float) or not math.isfinite(cpu) or cpu <= 0:
        raise InvalidArgument(f"cpu must be a number of cores above 0, not {cpu!r}")
    return float(cpu)


LEAST_MEMORY = 4 * 10**6
"""Bytes: with less, a sandbox may start, but no command runs in it."""
LEAST_PIDS = 8
"""The runtime and the agent need some of them while a sandbox and its commands start."""


def check_least(*, memory: int | None, pids: int | None) -> None:
    """Raises InvalidArgument for limits that are too small for any sandbox."""
    if memory is not None and memory < LEAST_MEMORY:
        least = human_size(LEAST_MEMORY)
        raise InvalidArgument(f"{human_size(memory)} of memory is too little: a sandbox needs {least} or more")
    if pids is not None and pids < LEAST_PIDS:
        raise InvalidArgument(f"pids must be {LEAST_PIDS} or more, not {pids}: a sandbox itself needs some")


class Limits(Model):
    """Defaults and maxima of a sandbox."""

    cpu: float = 2.0
    max_cpu: float = 4.0
    memory: int = 2 * 10**9
    max_memory: int = 8 * 10**9
    disk: int = 10 * 10**9
    max_disk: int = 50 * 10**9
    pids: int = 512
    max_pids: int = 16384
    lifetime: float = 3600.0
    max_lifetime: float = 86400.0


def check_most(wanted: Resources, bounds: Limits) -> None:
    """Raises QuotaExceeded for more than the maximum."""
    for name, what, value, most in (
        ("cpu", "cores of CPU", wanted.cpu, bounds.max_cpu),
        ("memory", "of memory", wanted.memory, bounds.max_memory),
        ("disk", "of disk", wanted.disk, bounds.max_disk),
        ("pids", "processes", wanted.pids, bounds.max_pids),
    ):
        if value is None or value <= most:
            continue
        asked, allowed = f"{value:,g}", f"{most:,g}"
        if name in ("memory", "disk"):
            asked, allowed = human_size(int(value)), human_size(int(most))
        if asked == allowed:  # above it by less than is shown
            asked, allowed = f"{value:,} B", f"{most:,} B"
        raise QuotaExceeded(
            f"{asked} {what} {'is' if name in ('memory', 'disk') else 'are'} above the maximum of {allowed}",
            hint=f"ask for less, or raise the maximum with SKERRY_MAX_{name.upper()}",
        )


def check_lifetime(value: Seconds, bounds: Limits | None = None) -> float:
    """Seconds. Raises InvalidArgument, or QuotaExceeded for more than the maximum."""
    seconds, most = check_seconds(value), (bounds or limits()).max_lifetime
    if seconds > most:
        raise QuotaExceeded(
            f"a lifetime of {human_duration(seconds)} is above the maximum of {human_duration(most)}",
            hint="ask for less, or raise the maximum with SKERRY_MAX_LIFETIME",
        )
    return seconds


_VARIABLES = tuple(f"SKERRY_{field.name.upper()}" for field in fields(Limits))


def limits() -> Limits:
    """The limits in force: `SKERRY_<NAME>` in the environment (SKERRY_MAX_MEMORY=16GB …) over the built-in ones.

    Raises InvalidArgument.
    """
    return _limits(tuple(os.environ.get(variable) for variable in _VARIABLES))


@lru_cache(maxsize=8)
def _limits(texts: tuple[str | None, ...]) -> Limits:
    given: dict[str, Any] = {}
    for field, variable, text in zip(fields(Limits), _VARIABLES, texts, strict=True):
        if text is not None:
            given[field.name] = (parse_size if isinstance(field.default, int) else _number)(text, variable)
    return Limits(**given)


def _number(text: str, variable: str) -> float:
    try:
        return check_seconds(text if "LIFETIME" in variable else float(text), variable)
    except ValueError:
        words = "a duration such as 2h" if "LIFETIME" in variable else "a number above 0"
        raise InvalidArgument(f"{variable}={text!r} is not {words}") from None


def home() -> Path:
    """The directory that holds everything Skerry keeps: SKERRY_HOME, by default /var/lib/skerry."""
    path = Path(os.environ.get("SKERRY_HOME", "/var/lib/skerry"))
    if not path.is_absolute():
        raise InvalidArgument(f"SKERRY_HOME must be an absolute path, not {str(path)!r}")
    return path


def login_file() -> Path:
    """Where `skerry login` stores a server and its key: SKERRY_LOGIN, or in the user's configuration directory."""
    if given := os.environ.get("SKERRY_LOGIN"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "skerry" / "login.json"
