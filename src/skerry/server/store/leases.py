"""Which sandboxes and hidden snapshots end with which client."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Literal

from skerry.server.store.database import Database

LeaseKind = Literal["sandbox", "snapshot"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    kind: LeaseKind
    id: str
    holder: str
    """The name that a client's process has given itself; nobody can guess it."""
    process: int
    """The client's process id, for people who look."""
    preparing: bool = False
    """Whether its holder still has to complete it."""


class LeaseStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, kind: LeaseKind, id: str) -> Lease | None:
        row = self._db.row("SELECT * FROM leases WHERE kind = ? AND id = ?", kind, id)
        return None if row is None else _lease(row)

    def all(self) -> list[Lease]:
        return [_lease(row) for row in self._db.rows("SELECT * FROM leases")]

    async def put(self, lease: Lease) -> None:
        """A later holder replaces an earlier one; `preparing` stays as it was."""
        await self._db.execute(
            "INSERT INTO leases (kind, id, holder, process, preparing) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET holder = excluded.holder, process = excluded.process",
            *(lease.kind, lease.id, lease.holder, lease.process, lease.preparing),
        )

    async def remove(self, kind: LeaseKind, id: str) -> None:
        await self._db.execute("DELETE FROM leases WHERE kind = ? AND id = ?", kind, id)


def _lease(row: sqlite3.Row) -> Lease:
    return Lease(**{**dict(row), "preparing": bool(row["preparing"])})
