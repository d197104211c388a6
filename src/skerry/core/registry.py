"""Finds providers by name: Skerry's own, and those of others through entry points of the group `skerry.providers`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module

from skerry.core import config
from skerry.core.contract.provider import Provider
from skerry.core.errors import InvalidArgument

GROUP = "skerry.providers"
BUILT_IN = {
    "local": ("skerry.providers.local", "LocalProvider"),
    "remote": ("skerry.providers.remote", "RemoteProvider"),
}
"""The entry points of Skerry itself: to look through those of every distribution takes longer than `skerry ps`."""


def names() -> list[str]:
    """The installed providers."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=GROUP)})


@cache
def _load(name: str) -> Provider:
    return factory(name)()


def default() -> str:
    """The provider to use by default: `remote` where SKERRY_URL or `skerry login` names a server, else `local`."""
    return "remote" if os.environ.get("SKERRY_URL") or os.path.exists(config.login_file()) else "local"


def provider(which: str | Provider | None = None) -> Provider:
    """The provider object for a name, or the default one; one object for each process. Raises InvalidArgument."""
    return which if isinstance(which, Provider) else _load(which or default())


def factory(name: str) -> Callable[..., Provider]:
    """The function that makes a new provider object of that name with its own settings. Raises InvalidArgument."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name]
        built_in: Callable[..., Provider] = getattr(import_module(module), attribute)
        return built_in
    import difflib
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        made: Callable[..., Provider] = entry.load()
        return made
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(names()) or 'none'}"
    raise InvalidArgument(f"there is no provider {name!r}", hint=hint)
