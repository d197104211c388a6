"""When a stream has to end though nobody at either end wants it to."""

from __future__ import annotations

from collections.abc import Collection

import anyio

from skerry.server.access import Subject
from skerry.server.context import Context
from skerry.server.identity import Actor, still_good
from skerry.server.permissions import Action

LOOK_EVERY = 2.0
GOING_AWAY = 1012
NO_LONGER_ALLOWED = 4403


async def until_over(
    context: Context, actor: Actor, subject: Subject, actions: Collection[Action] = (Action.SANDBOX_READ,)
) -> tuple[int, str]:
    """Wait until the server stops or the actor may no longer do one of `actions`; the code and reason to close with.

    `actions` is looked at each time, so it may grow meanwhile.
    """
    while True:
        with anyio.move_on_after(LOOK_EVERY):
            await context.stopping.wait()
            return GOING_AWAY, "the server stops"
        allowed = all(context.allows(actor, action, subject) for action in actions)
        if not allowed or not still_good(context.store, actor):
            return NO_LONGER_ALLOWED, "this is no longer allowed"
