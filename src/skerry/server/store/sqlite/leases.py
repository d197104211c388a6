"""Which sandboxes and hidden snapshots end with which client."""

from __future__ import annotations

from skerry.server.store import contract
from skerry.server.store.records import Lease, LeaseKind
from skerry.server.store.sqlite.database import Database


class Leases(contract.Leases):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(self, lease: Lease) -> None:
        await self._db.execute(
            "INSERT INTO leases (kind, id, holder, process, preparing) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET holder = excluded.holder, process = excluded.process",
            *(lease.kind, lease.id, lease.holder, lease.process, lease.preparing),
        )

    async def remove(self, kind: LeaseKind, id: str) -> None:
        await self._db.execute("DELETE FROM leases WHERE kind = ? AND id = ?", kind, id)
