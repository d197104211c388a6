"""The audit: what was changed and refused, and by whom; without secrets and contents."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple

from skerry.server.store import contract
from skerry.server.store.records import AuditEntry
from skerry.server.store.sqlite.database import Database


class Audit(contract.Audit):
    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def add(self, entries: Sequence[AuditEntry]) -> None:
        rows = [astuple(entry)[:-1] for entry in entries]
        sql = (
            "INSERT INTO audit (time, actor, credential, action, operation, target, project_id, outcome, address,"
            " request_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        await self._db.write(lambda db: db.executemany(sql, rows))

    async def before(self, seq: int | None, *, project_id: str | None = None, limit: int = 100) -> list[AuditEntry]:
        rows = await self._db.rows(
            "SELECT * FROM audit WHERE seq < ?1 AND (?2 IS NULL OR project_id = ?2) ORDER BY seq DESC LIMIT ?3",
            *(2**62 if seq is None else seq, project_id, limit),
        )
        return [_entry(row) for row in rows]

    async def prune(self, kept: float) -> int:
        return await self._db.execute("DELETE FROM audit WHERE time < ?", time.time() - kept)


def _entry(row: sqlite3.Row) -> AuditEntry:
    return AuditEntry(**dict(row))
