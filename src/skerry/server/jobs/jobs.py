"""The work of a server that nobody asks for. Each part goes on whatever the provider says, and ends with the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from skerry.core import SkerryError
from skerry.server.context import Context
from skerry.server.jobs import webhooks
from skerry.server.store.backup import back_up, backups

log = logging.getLogger("skerry.server")

HOUR, DAY = 3600.0, 86400.0
AGAIN = 2.0
"""Seconds before a part that has failed begins again."""


async def start(context: Context, tasks: TaskGroup) -> None:
    """Reconcile once, so that the first request finds what there is; then go on in `tasks`."""
    try:
        await context.events.look()
    except SkerryError as error:
        log.error("the provider does not answer: %s", str(error), extra={"code": error.code})
    for name, work in (
        ("events", context.events.run),
        ("leases", context.leases.run),
        ("webhooks", partial(webhooks.run, context)),
        ("pruning", partial(_tidy, context)),
        ("backups", partial(_back_up, context)),
    ):
        tasks.start_soon(go_on, name, work)


async def go_on(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Begin `work` again when it fails: else the others would end with it, and requests be answered without them."""
    while True:
        try:
            await work()
            return
        except Exception:  # what it was is in the log; there is nobody to tell
            log.exception("the part %r has failed and begins again", name)
        await anyio.sleep(AGAIN)


async def _tidy(context: Context) -> None:
    """Forget what is older than what is kept, and close connections that nobody uses."""
    while True:
        await context.sandboxes.close_idle()
        try:
            await context.store.events.prune(context.settings.events_kept)
            await context.store.audit.prune(context.settings.audit_kept)
        except SkerryError as error:
            log.error("cannot prune: %s", str(error), extra={"code": error.code})
        await anyio.sleep(HOUR / 6)


async def _back_up(context: Context) -> None:
    """A backup a day, also across restarts: those kept are of so many days, however often the server starts."""
    database, keep = context.store.db.path, context.settings.backups_kept
    while keep:
        if (pause := _due(database)) <= 0:
            try:
                await run_sync(lambda: back_up(database, keep=keep))
            except (SkerryError, OSError) as error:
                log.error("cannot back up the database: %s", str(error))
            pause = HOUR
        await anyio.sleep(min(pause, HOUR))


def _due(database: Path) -> float:
    """Seconds until the next backup."""
    there = backups(database.parent)
    age = time.time() - there[-1].stat().st_mtime if there else DAY
    return DAY - age if age >= 0 else 0.0  # a clock that was wrong does not put it off
