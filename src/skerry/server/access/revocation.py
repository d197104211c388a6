"""Ends streams and long requests when the server stops or their right is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import anyio

from skerry.core import PermissionDenied
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor, still_good
from skerry.server.access.permissions import Action
from skerry.server.context import Context

LOOK_EVERY = 2.0
GOING_AWAY = 1012
NO_LONGER_ALLOWED = 4403


async def until_over(
    context: Context, actor: Actor, subject: Subject, actions: Collection[Action] = (Action.SANDBOX_READ,)
) -> tuple[int, str]:
    """Wait until the server stops or the actor may no longer do one of `actions`; the code and reason to close with.

    `actions` is read each time, so the caller may add to it.
    """
    while True:
        with anyio.move_on_after(LOOK_EVERY):
            await context.stopping.wait()
            return GOING_AWAY, "the server stops"
        if not _still_may(context, actor, subject, actions):
            return NO_LONGER_ALLOWED, "this is no longer allowed"


@contextmanager
def while_allowed(context: Context, actor: Actor, subject: Subject, action: Action) -> Iterator[None]:
    """Cancel the block when the actor may no longer do this, and raise PermissionDenied then."""
    loop, scope = asyncio.get_running_loop(), anyio.CancelScope()
    timer = loop.call_later(LOOK_EVERY, lambda: look())  # most requests are done before it is due

    def look() -> None:
        nonlocal timer
        if _still_may(context, actor, subject, (action,)):
            timer = loop.call_later(LOOK_EVERY, look)
        else:
            scope.cancel()

    with scope:
        try:
            yield
        finally:
            timer.cancel()
    if scope.cancelled_caught:
        raise PermissionDenied("this is no longer allowed")


def _still_may(context: Context, actor: Actor, subject: Subject, actions: Collection[Action]) -> bool:
    return still_good(context.store.accounts, actor) and all(
        context.allows(actor, action, subject) for action in actions
    )
