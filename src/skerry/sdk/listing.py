"""Lists of sandboxes, and what is known about one without asking it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from skerry._model import Model
from skerry.core import (
    InvalidArgument,
    Provider,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    SkerryError,
    State,
    Usage,
    did_you_mean,
    looks_like_id,
    plain_name,
)
from skerry.sdk.commands.request import check_whole
from skerry.sdk.options import check_pairs


class SandboxStatus(Model):
    """How a sandbox is doing."""

    state: State
    """What it does now."""
    uptime: float
    """Seconds since it started."""
    usage: Usage | None
    """None unless it runs."""


class SandboxPage(Model):
    """Sandboxes of a list: all of them, or a page; iterating it gives its items."""

    items: tuple[SandboxInfo, ...]
    cursor: str | None
    """What to pass for the next page; None: this is the last page."""

    def __iter__(self) -> Iterator[SandboxInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> SandboxInfo:
        return self.items[index]


def select_sandboxes(
    everything: Iterable[SandboxInfo],
    *,
    state: State | str | None,
    metadata: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    limit: int | None,
    cursor: str | None,
) -> SandboxPage:
    """The sandboxes that match, oldest first: all after `cursor`, or at most `limit` of them.

    Raises InvalidArgument.
    """
    if limit is not None:
        check_whole(limit, "limit", least=1)
    wanted = None if state is None else check_state(state)
    after = None if cursor is None else _parse_cursor(cursor)
    pairs, tags = check_pairs(metadata, "metadata").items(), check_pairs(labels, "labels").items()
    found = [
        info
        for info in everything
        if (wanted is None or info.state is wanted)
        and pairs <= info.metadata.items()
        and tags <= info.labels.items()
        and (after is None or (info.created_at, info.id) > after)
    ]
    found.sort(key=lambda info: (info.created_at, info.id))
    page = tuple(found[:limit])
    more = len(found) > len(page)
    return SandboxPage(items=page, cursor=f"{page[-1].created_at!r}:{page[-1].id}" if more else None)


async def look_up(provider: Provider, call: Callable[[str], Awaitable[SandboxInfo]], asked: str) -> SandboxInfo:
    """What `call` finds. Raises SandboxNotFound; its hint has the closest name of what this caller can list."""
    try:
        return await call(asked)
    except SandboxNotFound as error:
        if not looks_like_id(asked):
            with suppress(SkerryError, OSError):
                names = [name for info in await provider.list() if (name := plain_name(info.name, info.labels))]
                if asked in names:  # only `get` does not find it
                    error.hint = "get() takes an id; find() and connect() take a name too"
                elif near := did_you_mean(asked, names):
                    error.hint = f"{near} Sandbox.list() has those that exist"
        raise


NOT_TOLD = frozenset({"snapshot", "env", "secrets", "secrets_of", "idempotency_key", "source", "leased", "unsynced"})
"""What a sandbox was created with that its info does not say. Every other field of a spec is in the info."""


def spec_of(info: SandboxInfo) -> SandboxSpec:
    """What a sandbox was created with, as far as its provider tells."""
    told = [field.name for field in dataclasses.fields(SandboxSpec) if field.name not in NOT_TOLD]
    known: dict[str, Any] = {name: getattr(info, name) for name in told}
    return SandboxSpec(
        **known
        | {
            "timeout": _lifetime(info),
            "on_timeout": info.on_timeout_asked,
            "network": "open" if info.network == "open" else "none",
        }
    )


def _lifetime(info: SandboxInfo) -> float:
    """As it was created with, where that is known; else as it was given from its last start on."""
    if info.timeout is not None:
        return info.timeout
    return 0.0 if info.expires_at is None else info.expires_at - (info.started_at or info.created_at)


def check_state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise InvalidArgument(f"there is no state {state!r}", hint=f"use one of {', '.join(State)}") from None


def _parse_cursor(cursor: str) -> tuple[float, str]:
    created, _, sandbox_id = cursor.partition(":")
    try:
        return float(created), sandbox_id
    except ValueError:
        raise InvalidArgument(f"{cursor!r} is not a cursor") from None
