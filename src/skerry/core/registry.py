"""Finds providers by name, through entry points of the group `skerry.providers`."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import entry_points

from skerry.core.errors import InvalidArgument
from skerry.core.provider import Provider

GROUP = "skerry.providers"


def names() -> list[str]:
    """The installed providers."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


@cache
def _load(name: str) -> Provider:
    for entry in entry_points(group=GROUP, name=name):
        provider: Provider = entry.load()()
        return provider
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(names()) or 'none'}"
    raise InvalidArgument(f"there is no provider {name!r}", hint=hint)


def provider(which: str | Provider) -> Provider:
    """The provider object for a name; one object a process. Raises InvalidArgument."""
    return which if isinstance(which, Provider) else _load(which)
