"""Handles to processes and terminals that take input, kept between requests: each request continues the last.

A handle holds the stream that carries input; closing it after each request could lose what the program has not read.
A second handle would take over the first and drop its unsent input, so each process has one shared handle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from skerry.sdk import AsyncProcess, AsyncSandbox, AsyncTerminal

H = TypeVar("H")
MOST = 256
"""Handles of one kind for each sandbox; the one that was unused for longest is closed first."""


class Handles(Generic[H]):
    """Handles by sandbox object and id."""

    def __init__(self, find: Callable[[AsyncSandbox, int], Awaitable[H]]) -> None:
        self._find = find
        self._kept: WeakKeyDictionary[AsyncSandbox, OrderedDict[int, H]] = WeakKeyDictionary()

    async def get(self, sandbox: AsyncSandbox, id: int) -> H:
        """The handle that is kept, or a new one that is kept from now on. Raises ProcessNotFound."""
        if (known := self._known(sandbox, id)) is not None:
            return known
        found = await self._find(sandbox, id)
        return self._known(sandbox, id) or self.keep(sandbox, id, found)  # another request may have been faster

    def _known(self, sandbox: AsyncSandbox, id: int) -> H | None:
        known = self._kept.get(sandbox)
        if known is None or id not in known:
            return None
        known.move_to_end(id)
        return known[id]

    def keep(self, sandbox: AsyncSandbox, id: int, handle: H) -> H:
        known = self._kept.setdefault(sandbox, OrderedDict())
        known[id] = handle
        known.move_to_end(id)
        if len(known) > MOST:
            known.popitem(last=False)
        return handle

    def drop(self, sandbox: AsyncSandbox, id: int) -> None:
        self._kept.get(sandbox, OrderedDict()).pop(id, None)


def process_handles() -> Handles[AsyncProcess]:
    return Handles(lambda sandbox, which: sandbox.processes.get(which))


def terminal_handles() -> Handles[AsyncTerminal]:
    return Handles(lambda sandbox, which: sandbox.terminals.get(which))
