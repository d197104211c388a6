"""The work of a server that nobody asks for. Each part goes on whatever the provider says, and ends with the server."""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from skerry.core.errors import SkerryError
from skerry.server import webhooks
from skerry.server.context import Context
from skerry.server.store.backup import back_up

log = logging.getLogger("skerry.server")

HOUR, DAY = 3600.0, 86400.0


async def start(context: Context, tasks: TaskGroup) -> None:
    """Reconcile once, so that the first request finds what there is; then go on in `tasks`."""
    try:
        await context.events.look()
    except SkerryError as error:
        log.error("the provider does not answer: %s", str(error), extra={"code": error.code})
    tasks.start_soon(context.events.run)
    tasks.start_soon(context.leases.run)
    tasks.start_soon(webhooks.run, context)
    tasks.start_soon(_tidy, context)
    tasks.start_soon(_back_up, context)


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
    """A backup at the start and one a day: what a damaged database is restored from."""
    while context.settings.backups_kept:
        try:
            await run_sync(lambda: back_up(context.store.db.path, keep=context.settings.backups_kept))
        except (SkerryError, OSError) as error:
            log.error("cannot back up the database: %s", str(error))
        await anyio.sleep(DAY)
