"""Runs the background jobs of a server. Each continues whatever the provider answers, and ends with the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from skerry.core import SkerryError
from skerry.server.context import Context
from skerry.server.jobs import webhooks
from skerry.server.store import Store

log = logging.getLogger("skerry.server")

HOUR, DAY = 3600.0, 86400.0
AGAIN = 2.0
"""Seconds before a failed job begins again."""


async def start(context: Context, tasks: TaskGroup) -> None:
    """Reconcile once, so that the first request finds all sandboxes; then start the jobs in `tasks`."""
    try:
        await context.events.look()
    except SkerryError as error:
        log.error("the provider does not answer: %s", str(error), extra={"code": error.code})
    for name, work in (
        ("accounts", context.store.follow),
        ("events", context.events.run),
        ("leases", context.leases.run),
        ("webhooks", partial(webhooks.run, context)),
        ("pruning", partial(_tidy, context)),
        ("backups", partial(_back_up, context)),
    ):
        tasks.start_soon(go_on, name, work)


async def go_on(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Begin `work` again when it fails: otherwise it would end the other jobs, while requests are still answered."""
    while True:
        try:
            await work()
            return
        except Exception:  # the log has it; no caller waits for it
            log.exception("the job %r has failed and begins again", name)
        await anyio.sleep(AGAIN)


async def _tidy(context: Context) -> None:
    """Delete what is too old to keep, and close connections that nobody uses."""
    while True:
        await context.sandboxes.close_idle()
        try:
            await context.store.events.prune(context.settings.events_kept)
            await context.store.audit.prune(context.settings.audit_kept)
        except SkerryError as error:
            log.error("cannot prune: %s", str(error), extra={"code": error.code})
        await anyio.sleep(HOUR / 6)


async def _back_up(context: Context) -> None:
    """Take one backup a day, also across restarts: each kept backup is of another day, however often it restarts."""
    store, keep = context.store, context.settings.backups_kept
    while keep:
        if (pause := await _due(store)) <= 0:
            try:
                await store.back_up(keep=keep)
            except (SkerryError, OSError) as error:
                log.error("cannot back up the database: %s", str(error))
            pause = HOUR
        await anyio.sleep(min(pause, HOUR))


async def _due(store: Store) -> float:
    """Seconds until the next backup."""
    last = await store.backed_up_at()
    age = DAY if last is None else time.time() - last
    return DAY - age if age >= 0 else 0.0  # a clock that was wrong does not delay it
