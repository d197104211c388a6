"""Handles to processes and terminals that take input, kept between requests: the next one goes on where the last ended.

A handle holds the stream that carries input; closing it after each request could lose what the program has not read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from skerry.sdk import AsyncProcess, AsyncSandbox, AsyncTerminal

H = TypeVar("H")
MOST = 256
"""Handles of one kind a sandbox; the one that was not used for longest is let go first."""


class Handles(Generic[H]):
    """By sandbox object and id."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[AsyncSandbox, OrderedDict[int, H]] = WeakKeyDictionary()

    def get(self, sandbox: AsyncSandbox, id: int) -> H | None:
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


PROCESSES: Handles[AsyncProcess] = Handles()
TERMINALS: Handles[AsyncTerminal] = Handles()
