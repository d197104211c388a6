"""Places for work that holds much: a process, a thread, memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

from skerry.server.access.identity import Actor
from skerry.server.context import Context


class Slots:
    """`each` for one actor, and `most` in one server, if at all: nobody's slow work keeps all others waiting."""

    def __init__(self, *, each: int, most: int | None = None) -> None:
        self._each, self._most = each, most
        self._all: WeakKeyDictionary[Context, asyncio.Semaphore] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[Context, WeakValueDictionary[str, asyncio.Semaphore]] = WeakKeyDictionary()

    @asynccontextmanager
    async def taken(self, context: Context, actor: Actor) -> AsyncIterator[None]:
        """Waits for a place."""
        own = self._own.setdefault(context, WeakValueDictionary())
        mine = own.setdefault(actor.id, asyncio.Semaphore(self._each))
        async with mine:
            if self._most is None:
                yield
                return
            async with self._all.setdefault(context, asyncio.Semaphore(self._most)):
                yield


STATES = Slots(each=2, most=8)
"""For states on their way: each holds one of the provider's threads while a client is slow."""
CREATES = Slots(each=8)
"""For what makes sandboxes: the provider makes few at a time."""
CHANGES = Slots(each=8)
"""For what changes a sandbox, a snapshot, a volume or a template as a whole: each may hold a thread of the provider."""
ENDS = Slots(each=8)
"""For what destroys sandboxes: apart from changes, since a destroy ends a stop that takes long."""
LISTS = Slots(each=2)
"""For long lists: reading and writing one takes the event loop's time, a slice at a time."""
OUTPUTS = Slots(each=4, most=32)
"""For commands whose output has become large, while the server holds it."""
