"""Ends what belonged to a client that is gone. A restart of the server ends nothing: every holder may renew."""

from __future__ import annotations

import contextlib
import logging
import re
import time

import anyio

from skerry.core import InvalidArgument, SkerryError, SnapshotNotFound, Snapshots
from skerry.server.projects.sandboxes import Directory
from skerry.server.store import Lease, LeaseKind, Store

log = logging.getLogger("skerry.server")

LIFETIME = 30.0
"""Seconds that a holder may be silent; clients renew every 5 seconds."""
LOOK_EVERY = 2.0
STOOD_STILL = 1.0
"""Seconds by which a look may be late."""
_HOLDER = re.compile(r"[A-Za-z0-9-]{16,64}")


class Leases:
    """The leases of a server. Renewals are not stored: after a start every holder has the full time."""

    def __init__(self, store: Store, directory: Directory) -> None:
        self._store, self._directory = store, directory
        self._heard: dict[str, float] = {}
        self._began = time.monotonic()

    async def hold(self, kind: LeaseKind, id: str, holder: str, process: int, *, preparing: bool = False) -> None:
        """Raises InvalidArgument for a name that could be guessed."""
        self.renew(holder)
        await self._store.leases.put(Lease(kind=kind, id=id, holder=holder, process=process, preparing=preparing))

    async def release(self, kind: LeaseKind, id: str) -> None:
        await self._store.leases.remove(kind, id)

    def renew(self, holder: str) -> None:
        """Raises InvalidArgument."""
        if not _HOLDER.fullmatch(holder):
            raise InvalidArgument("a holder's name has 16 to 64 letters, digits and hyphens")
        self._heard[holder] = time.monotonic()

    def process_of(self, sandbox_id: str) -> int | None:
        """The process that a sandbox ends with, if any."""
        lease = self._store.accounts.lease("sandbox", sandbox_id)
        return None if lease is None else lease.process

    def is_preparing(self, sandbox_id: str) -> bool:
        """Whether its maker has not completed it yet."""
        lease = self._store.accounts.lease("sandbox", sandbox_id)
        return lease is not None and lease.preparing

    async def run(self) -> None:
        """Look for expired leases for ever."""
        while True:
            due = time.monotonic() + LOOK_EVERY
            await anyio.sleep(LOOK_EVERY)
            if (late := time.monotonic() - due) > STOOD_STILL:
                self._forgive(late)
            await self.sweep()

    def _forgive(self, seconds: float) -> None:
        """Note that this server stood still for this long: during that time no holder could renew."""
        self._began += seconds
        self._heard = {name: heard + seconds for name, heard in self._heard.items()}

    def _is_over(self, lease: Lease) -> bool:
        return time.monotonic() - self._heard.get(lease.holder, self._began) > LIFETIME

    async def sweep(self) -> list[str]:
        """End what nobody holds any more; returns the ids."""
        leases, ended = self._store.accounts.leases(), []
        for lease in leases:
            # Ending one takes a while: another may have been released or renewed since.
            if self._is_over(lease) and self._store.accounts.lease(lease.kind, lease.id) == lease:
                try:
                    await self._end(lease)
                except SkerryError as error:  # continue with the others; the next sweep tries this one again
                    log.error("cannot end %s: %s", lease.id, error, extra={"code": error.code})
                else:
                    ended.append(lease.id)
        now, holders = time.monotonic(), {lease.holder for lease in leases}
        for name in [name for name, heard in self._heard.items() if name not in holders and now - heard > LIFETIME]:
            del self._heard[name]
        return ended

    async def _end(self, lease: Lease) -> None:
        log.info("ended %s: its client is gone", lease.id, extra={"sandbox_id": lease.id, "op": "lease"})
        if lease.kind == "sandbox":
            async with self._directory.ending(lease.id):
                await self._directory.provider_of(lease.id).destroy(lease.id)
        else:
            noted = self._store.accounts.owned("snapshot", lease.id)
            provider = self._directory.providers.default if noted is None else self._directory.providers.of(noted)
            if isinstance(provider, Snapshots):
                with contextlib.suppress(SnapshotNotFound):
                    await provider.delete_snapshot(lease.id)
        await self._store.leases.remove(lease.kind, lease.id)
