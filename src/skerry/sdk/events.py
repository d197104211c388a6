"""What happens to a sandbox, seen from here: the provider's stored events and those of this client's connection."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import time
from collections.abc import AsyncIterator, Callable
from typing import Literal, get_args

from skerry.core import Event, InvalidArgument, Provider, SandboxNotFound, SkerryError
from skerry.sdk.log import log

EventType = Literal[
    "created",
    "ready",
    "started",
    "stopped",
    "paused",
    "resumed",
    "reset",
    "recovered",
    "archived",
    "error",
    "destroyed",
    "connected",
    "disconnected",
    "reconnecting",
    "metrics",
    "resource_alert",
    "snapshot_created",
    "restored",
]
EventCallback = Callable[[Event], object]
"""Gets every event it was added for; may be a coroutine function."""

POLL = 1.0
"""How often a waiting listener asks the provider; a provider has no way to call us."""
KEPT = 10_000
SAME_ERROR = 60.0
"""Seconds at most between two observers' reports of one error."""
BEGINS = ("started", "recovered", "restored", "reset", "connected")
"""Events after which an error counts as a new one."""


class EventLog:
    """The events of one sandbox in the order they were seen.

    Stored events have the provider's cursor. Those of this client's connection (connected, disconnected, reconnecting,
    error) have the cursor of the stored event before them and are known to this object alone. An error that both report
    is one event: the first of the two.
    """

    def __init__(self, provider: Provider, sandbox_id: str) -> None:
        self._provider, self._sandbox_id = provider, sandbox_id
        self._seen: list[Event] = []
        self._dropped = 0
        self._cursor = 0
        self._asked_at = 0.0
        self._ended = False
        self._looked = False
        self._waiters: list[asyncio.Future[None]] = []
        self._listeners: set[asyncio.Task[None]] = set()

    def add(self, type: EventType, data: dict[str, str] | None = None) -> None:
        """Record an event of this client's connection."""
        event = Event(cursor=self._cursor, type=type, sandbox_id=self._sandbox_id, time=time.time(), data=data or {})
        if not self._ended and not self._is_known(event):
            self._append([event])

    def _is_known(self, event: Event) -> bool:
        """Whether it is the end of a sandbox that was seen already, and nothing has begun again since."""
        if event.type == "error" and event.data.get("type") == "connection-lost":
            for before in reversed(self._seen):
                if before.type == "error" and before.data.get("reason") == event.data.get("reason"):
                    return abs(event.time - before.time) < SAME_ERROR
                if before.type in BEGINS:
                    return False
        return False

    def _append(self, events: list[Event]) -> None:
        self._seen += events
        self._ended = self._ended or any(event.type == "destroyed" for event in events)
        if len(self._seen) > KEPT:
            self._dropped += len(self._seen) - KEPT
            del self._seen[:-KEPT]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.get_loop().is_closed():
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def refresh(self) -> None:
        """Ask the provider for what is new."""
        self._asked_at = time.monotonic()
        try:
            stored = await self._provider.events(self._sandbox_id, self._cursor)
        except SandboxNotFound:
            self.add("destroyed")
            return
        fresh = [event for event in stored if event.cursor > self._cursor]
        if fresh:
            self._cursor = max(event.cursor for event in fresh)
            # What is stored before anybody looked happened before our own first connection.
            new, ours = [event for event in fresh if not self._is_known(event)], list[Event]()
            if not self._looked:
                ours, self._seen = self._seen, []
            self._append(new + ours)
        self._looked = True

    async def follow(self, since: int = 0) -> AsyncIterator[Event]:
        """Every event above `since` and those to come, up to `destroyed`."""
        await self.refresh()
        position = 0
        while True:
            while position < self._dropped + len(self._seen):
                position = max(position, self._dropped)
                event = self._seen[position - self._dropped]
                position += 1
                if event.cursor > since or not since:
                    yield event
                if event.type == "destroyed":
                    return
            await self.wait()
            if time.monotonic() - self._asked_at >= POLL and not self._ended:
                await self.refresh()

    async def wait(self) -> None:
        """Return at the next event that is seen here, or when it is time to ask the provider again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=POLL)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def listen(self, type: EventType | Literal["*"], callback: EventCallback) -> Callable[[], None]:
        """Call `callback` for each event of a type, from the first one on. Returns the function that ends this.

        Raises InvalidArgument for a type that does not exist and a callback that is not a function.
        """
        check_callback(callback, "the callback of an event")
        known = (*get_args(EventType), "*")
        if type not in known:
            near = difflib.get_close_matches(str(type), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"
            raise InvalidArgument(f"there is no event {type!r}", hint=hint)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._deliver(type, callback))
        self._listeners.add(task)
        task.add_done_callback(self._listeners.discard)

        def unsubscribe() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        return unsubscribe

    async def _deliver(self, type: str, callback: EventCallback) -> None:
        extra = {"sandbox_id": self._sandbox_id, "provider": self._provider.name, "op": "event"}
        try:
            async for event in self.follow():
                if type in ("*", event.type):
                    await self._call(callback, event, extra)
        except SkerryError as error:
            log.error("no more events: %s", error, extra=extra)

    async def _call(self, callback: EventCallback, event: Event, extra: dict[str, str]) -> None:
        try:
            outcome = callback(event)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:  # noqa: BLE001
            # The caller's own code: its failure must not keep later events from it.
            log.exception("the callback for %s failed", event.type, extra=extra)

    async def finish(self, timeout: float) -> None:
        """Wait until the listeners have had `destroyed`; those that take too long are ended."""
        mine = {task for task in self._listeners if task.get_loop() is asyncio.get_running_loop()}
        mine -= _current()
        if mine:
            await asyncio.wait(mine, timeout=timeout)
        self.stop()

    def stop(self) -> None:
        """End the listeners."""
        for task in self._listeners - _current():
            if not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)


def check_callback(callback: object, what: str) -> None:
    """Raises InvalidArgument for what cannot be called; None means that there is no callback."""
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"{what} must be a function, not {type(callback).__name__}")


def _current() -> set[asyncio.Task[None]]:
    task = asyncio.current_task()
    return set() if task is None else {task}


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
