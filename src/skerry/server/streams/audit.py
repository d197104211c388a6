"""The audit of what happens inside streams, written in batches, so that nobody waits for the disk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from skerry.server.access.check import Subject, write_down
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action
from skerry.server.context import Context
from skerry.server.store import AuditEntry

WRITE_EVERY = 0.1
MOST = 5000
"""Entries held at once: a client that produces more waits."""


class Trail:
    """The audit of one socket."""

    def __init__(self, context: Context, actor: Actor, subject: Subject) -> None:
        self._context, self._actor, self._subject = context, actor, subject
        self._entries: list[AuditEntry] = []
        self._news = anyio.Event()

    def add(self, action: Action, operation: str, outcome: str = "ok") -> None:
        subject, actor = self._subject, self._actor
        self._entries.append(
            AuditEntry(
                time=time.time(),
                actor=actor.name,
                credential=actor.credential,
                action=action,
                operation=operation,
                target=f"sandbox {subject.sandbox_id or subject.asked}"[:300],
                project_id=None if subject.project is None else subject.project.id,
                outcome=outcome,
                address=actor.address,
                request_id=actor.request_id,
            )
        )
        self._news.set()

    async def room(self) -> None:
        if len(self._entries) > MOST:
            await self._write()

    async def _write(self) -> None:
        entries, self._entries = self._entries, []
        # A write that is cancelled while it waits for the one before it would never happen.
        with anyio.CancelScope(shield=True):
            await write_down(self._context.store, entries)

    async def _write_on(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            await anyio.sleep(WRITE_EVERY)
            await self._write()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Around the socket's lifetime; at its end everything is written."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_on)
                yield
                tasks.cancel_scope.cancel()
        finally:
            await self._write()
