"""The audit: what was changed and refused, and by whom; without secrets and contents."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from skerry.server.access.rate_limits import Buckets
from skerry.server.store.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    time: float
    actor: str
    """`user:<name>`, `token:<id>` or `anonymous`."""
    credential: str
    """`session`, `key:<id>`, `token:<id>`, `ticket` or nothing."""
    action: str
    operation: str
    """The method and the route, or the opener of a stream."""
    target: str
    project_id: str | None
    outcome: str
    """`ok`, or the code of the error."""
    address: str
    request_id: str
    seq: int = 0


class Audit:
    def __init__(self, db: Database) -> None:
        self._db = db
        self.nobodies = Buckets(rate=1.0, burst=300)
        """Refusals of clients without credentials that are recorded, for each address."""

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        rows = [astuple(entry)[:-1] for entry in entries]
        sql = (
            "INSERT INTO audit (time, actor, credential, action, operation, target, project_id, outcome, address,"
            " request_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        await self._db.write(lambda db: db.executemany(sql, rows))

    def before(self, seq: int | None, *, project_id: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Entries below `seq`, newest first; of one project, or of all."""
        rows = self._db.rows(
            "SELECT * FROM audit WHERE seq < ?1 AND (?2 IS NULL OR project_id = ?2) ORDER BY seq DESC LIMIT ?3",
            *(2**62 if seq is None else seq, project_id, limit),
        )
        return [_entry(row) for row in rows]

    async def prune(self, kept: float) -> int:
        return await self._db.execute("DELETE FROM audit WHERE time < ?", time.time() - kept)


def _entry(row: sqlite3.Row) -> AuditEntry:
    return AuditEntry(**dict(row))
