"""One-time tickets that open a WebSocket where a browser cannot send a key. Kept in memory, for seconds."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.server.access.identity import Actor

LIFETIME = 30.0
MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Ticket:
    actor: Actor
    path: str
    expires_at: float


class Tickets:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tickets: dict[str, _Ticket] = {}

    def issue(self, actor: Actor, path: str) -> str:
        """A ticket for one WebSocket at `path`, within the next seconds."""
        now = self._clock()
        for text in [text for text, ticket in self._tickets.items() if ticket.expires_at <= now]:
            del self._tickets[text]
        while len(self._tickets) >= MOST:
            del self._tickets[next(iter(self._tickets))]
        text = secrets.token_urlsafe(32)
        self._tickets[text] = _Ticket(actor, path, now + LIFETIME)
        return text

    def use(self, text: str, path: str) -> Actor | None:
        """The actor that a ticket belongs to. Uses the ticket up, even with a path it was not for."""
        ticket = self._tickets.pop(text, None)
        if ticket is None or ticket.expires_at <= self._clock() or ticket.path != path:
            return None
        return ticket.actor
