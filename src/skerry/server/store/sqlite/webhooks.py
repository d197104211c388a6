"""Webhooks: where events of a project are sent, and the position of each."""

from __future__ import annotations

import sqlite3
import time

from skerry.core import WEBHOOK, new_id
from skerry.server.store import contract
from skerry.server.store.records import Webhook
from skerry.server.store.sqlite.database import Database


def _webhook(row: sqlite3.Row) -> Webhook:
    return Webhook(**{**dict(row), "types": tuple(row["types"].split())})


class Webhooks(contract.Webhooks):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(
        self, project_id: str, url: str, secret: str, types: tuple[str, ...], *, created_by: str, since: int
    ) -> Webhook:
        id, now = new_id(WEBHOOK), time.time()
        sql = (
            "INSERT INTO webhooks (id, project_id, url, secret, types, created_by, created_at, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        await self._db.execute(sql, id, project_id, url, secret, " ".join(types), created_by, now, since)
        found = await self.get(project_id, id)
        assert found is not None
        return found

    async def get(self, project_id: str, id: str) -> Webhook | None:
        row = await self._db.row("SELECT * FROM webhooks WHERE project_id = ? AND id = ?", project_id, id)
        return None if row is None else _webhook(row)

    async def of_project(self, project_id: str) -> list[Webhook]:
        rows = await self._db.rows("SELECT * FROM webhooks WHERE project_id = ? ORDER BY created_at", project_id)
        return [_webhook(row) for row in rows]

    async def due(self, now: float) -> list[Webhook]:
        rows = await self._db.rows(
            "SELECT * FROM webhooks WHERE next_at <= ?"
            " AND since < (SELECT seq FROM sqlite_sequence WHERE name = 'events') ORDER BY next_at",
            now,
        )
        return [_webhook(row) for row in rows]

    async def remove(self, project_id: str, id: str) -> bool:
        return await self._db.execute("DELETE FROM webhooks WHERE project_id = ? AND id = ?", project_id, id) > 0

    async def progress(
        self, id: str, since: int, *, attempts: int = 0, next_at: float = 0.0, status: str = "", dropped: int = 0
    ) -> None:
        await self._db.execute(
            "UPDATE webhooks SET since = ?, attempts = ?, next_at = ?, last_status = ?, dropped = dropped + ?"
            " WHERE id = ?",
            *(since, attempts, next_at, status, dropped, id),
        )
