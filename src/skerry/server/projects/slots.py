"""Limits on concurrent work that holds much: a process, a thread, memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from skerry.server.access.identity import Actor


@dataclass(frozen=True, slots=True)
class Kind:
    """`each` places for one actor, and `most` in one server, if that is bounded."""

    name: str
    each: int
    most: int | None = None


STATES = Kind("states", each=2, most=8)
"""For states in transfer: each holds one of the provider's threads while a client is slow."""
CREATES = Kind("creates", each=8)
"""For requests that make sandboxes: the provider makes few at a time."""
CHANGES = Kind("changes", each=8)
"""For changes of a whole sandbox, snapshot, volume or template: each may hold a thread of the provider."""
ENDS = Kind("ends", each=8)
"""For requests that destroy sandboxes: apart from changes, since a destroy ends a stop that takes long."""
LISTS = Kind("lists", each=2)
"""For long lists: reading and writing one takes the event loop's time, a slice at a time."""
OUTPUTS = Kind("outputs", each=4, most=32)
"""For commands whose output has become large, while the server holds it."""
SEARCHES = Kind("searches", each=2, most=8)
"""For the processes that find and replace by patterns."""
SLICES = Kind("slices", each=1)
"""For slices of large answers, which the event loop makes."""


class Slots:
    """The places of one server."""

    def __init__(self) -> None:
        self._all: dict[str, asyncio.Semaphore] = {}
        self._own: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, kind: Kind, actor: Actor) -> AsyncIterator[None]:
        """Waits for a place."""
        mine = self._own.setdefault((kind.name, actor.id), asyncio.Semaphore(kind.each))
        async with mine:
            if kind.most is None:
                yield
                return
            async with self._all.setdefault(kind.name, asyncio.Semaphore(kind.most)):
                yield
