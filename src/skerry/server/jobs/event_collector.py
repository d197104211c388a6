"""Collects the events of all sandboxes into the database, where one number orders them all.

A provider cannot call the server, so the server asks it once a second which sandboxes have changed and reads their
events. For sandboxes that the server itself makes or ends, it reads them at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Sequence

import anyio

from skerry.core import Corrupted, Event, NewerVersion, Provider, SandboxInfo, SandboxNotFound, SkerryError, State
from skerry.server.projects.sandboxes import Directory
from skerry.server.store import Store

log = logging.getLogger("skerry.server")

POLL = 1.0
SHARE = 20
"""The pause between two looks is at least this many times as long as a look: a twentieth of a core at most."""


class Hub:
    def __init__(self, store: Store, directory: Directory) -> None:
        self._store, self._directory = store, directory
        self._seen: dict[str, dict[str, SandboxInfo]] = {}
        """By provider and id."""
        self._news = asyncio.Event()
        directory.on_news, directory.on_gone = self.collect, self._ended

    def states(self) -> dict[State, int]:
        """How many sandboxes were in each state at the last look."""
        seen = Counter(info.state for infos in self._seen.values() for info in infos.values())
        return {state: seen[state] for state in State}

    async def wait(self, timeout: float) -> None:
        """Return at the next event, or after `timeout`."""
        with anyio.move_on_after(timeout):
            await self._news.wait()

    async def run(self) -> None:
        """Collect for ever. If the provider does not answer, ask it again."""
        while True:
            began = time.monotonic()
            try:
                await self.look()
            except SkerryError as error:
                log.error("cannot collect events: %s", str(error), extra={"code": error.code})
            await anyio.sleep(max(POLL, SHARE * (time.monotonic() - began)))

    async def look(self) -> None:
        """Reconcile with the providers, and collect the events of what has changed.

        A provider that does not answer keeps nothing from the others; its error is raised at the end.
        """
        failed = None
        for provider in self._directory.providers.values():
            try:
                await self._look(provider)
            except SkerryError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _look(self, provider: Provider) -> None:
        infos = await provider.list()
        await self._directory.reconcile(provider.name, infos)
        before, seen = self._seen.get(provider.name, {}), {}
        for info in infos:
            seen[info.id] = dataclasses.replace(info, last_active_at=None)
            if before.get(info.id) != seen[info.id]:
                await self.collect(info.id)
        self._seen[provider.name] = seen

    async def collect(self, sandbox_id: str) -> None:
        """Store the new events of one sandbox."""
        try:
            provider = self._directory.provider_of(sandbox_id)
            events = await provider.events(sandbox_id, await self._store.events.cursor(sandbox_id))
        except SandboxNotFound:
            return
        except (Corrupted, NewerVersion) as error:  # only this one is affected: continue with the others
            log.error("cannot collect events: %s", str(error), extra={"code": error.code, "sandbox_id": sandbox_id})
            return
        await self._add(sandbox_id, events)

    async def _ended(self, sandbox_id: str) -> None:
        """The provider's own list of events is gone with the sandbox, so the server adds the last event."""
        last = await self._store.events.of_sandbox(sandbox_id)
        if last is None or last.type != "destroyed":
            cursor = await self._store.events.cursor(sandbox_id) + 1
            event = Event(cursor=cursor, type="destroyed", sandbox_id=sandbox_id, time=time.time())
            await self._add(sandbox_id, [event])

    async def _add(self, sandbox_id: str, events: Sequence[Event]) -> None:
        store = self._store
        item = store.accounts.owned("sandbox", sandbox_id) or await store.ownership.get("sandbox", sandbox_id)
        if await store.events.add(None if item is None else item.project_id, events):
            self.wake()

    def wake(self) -> None:
        """Wake everybody who waits for events."""
        news, self._news = self._news, asyncio.Event()
        news.set()
