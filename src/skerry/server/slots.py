"""Places for work that holds much: a process, a thread, memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

from skerry.server.context import Context
from skerry.server.identity import Actor


class Slots:
    """`most` in one server, and `each` of whoever asks: nobody's slow work keeps all others waiting."""

    def __init__(self, *, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._all: WeakKeyDictionary[Context, asyncio.Semaphore] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[Context, WeakValueDictionary[str, asyncio.Semaphore]] = WeakKeyDictionary()

    @asynccontextmanager
    async def taken(self, context: Context, actor: Actor) -> AsyncIterator[None]:
        """Waits for a place."""
        own = self._own.setdefault(context, WeakValueDictionary())
        mine = own.setdefault(actor.id, asyncio.Semaphore(self._each))
        async with mine, self._all.setdefault(context, asyncio.Semaphore(self._most)):
            yield


STATES = Slots(most=8, each=2)
"""For states on their way: each holds one of the provider's threads while a client is slow."""
