"""The work of a server that nobody asks for: it keeps the database equal to what the provider says."""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup

from skerry.core.errors import SkerryError
from skerry.server.context import Context

log = logging.getLogger("skerry.server")

RECONCILE = 30.0


async def start(context: Context, tasks: TaskGroup) -> None:
    """Reconcile once, so that the first request finds what there is; then go on in `tasks`."""
    await reconcile(context)
    tasks.start_soon(_reconcile_on, context)


async def _reconcile_on(context: Context) -> None:
    while True:
        await anyio.sleep(RECONCILE)
        await reconcile(context)


async def reconcile(context: Context) -> None:
    try:
        await context.sandboxes.reconcile(await context.provider.list())
        await context.sandboxes.close_idle()
    except SkerryError as error:
        log.error("cannot reconcile: %s", error, extra={"code": error.code})
