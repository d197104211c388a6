"""When a stream has to end though nobody at either end wants it to."""

from __future__ import annotations

import anyio

from skerry.server.access import Subject
from skerry.server.context import Context
from skerry.server.identity import Actor, still_good
from skerry.server.permissions import Action

LOOK_EVERY = 2.0
GOING_AWAY = 1012
NO_LONGER_ALLOWED = 4403


async def until_over(
    context: Context, actor: Actor, subject: Subject, action: Action = Action.SANDBOX_READ
) -> tuple[int, str]:
    """Wait until the server stops or the actor may no longer look; the code and reason to close with."""
    while True:
        with anyio.move_on_after(LOOK_EVERY):
            await context.stopping.wait()
            return GOING_AWAY, "the server stops"
        if not still_good(context.store, actor) or not context.allows(actor, action, subject):
            return NO_LONGER_ALLOWED, "this is no longer allowed"
