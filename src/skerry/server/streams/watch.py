"""When a stream has to end though nobody at either end wants it to."""

from __future__ import annotations

import time

import anyio

from skerry.server.access import Subject
from skerry.server.context import Context
from skerry.server.identity import Actor
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
        if not still_known(context, actor) or not context.allows(actor, action, subject):
            return NO_LONGER_ALLOWED, "this is no longer allowed"


def still_known(context: Context, actor: Actor) -> bool:
    """Whether what the actor came with is still good: not revoked, not expired, not disabled."""
    store = context.store
    if (token := actor.token) is not None and not any(
        found.id == token.id and _lasts(found.expires_at) for found in store.keys.tokens(token.sandbox_id)
    ):
        return False
    if actor.key is not None:
        key = store.keys.get(actor.key.id)
        if key is None or not _lasts(key.expires_at):
            return False
    if actor.session is not None and store.users.session(actor.session) is None:
        return False
    if actor.user is not None:
        user = store.users.get(actor.user.id)
        return user is not None and not user.disabled
    return True


def _lasts(expires_at: float | None) -> bool:
    return expires_at is None or expires_at > time.time()
