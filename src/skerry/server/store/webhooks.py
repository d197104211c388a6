"""Webhooks: where events of a project are sent, and the position of each."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, field

from skerry.core import WEBHOOK, new_id
from skerry.server.store.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    id: str
    project_id: str
    url: str
    secret: str = field(repr=False)
    types: tuple[str, ...]
    """Empty: all."""
    created_by: str
    created_at: float
    since: int
    """The last event that was delivered or dropped."""
    attempts: int
    """Attempts for the next event."""
    next_at: float
    last_status: str
    dropped: int


def _webhook(row: sqlite3.Row) -> Webhook:
    return Webhook(**{**dict(row), "types": tuple(row["types"].split())})


class Webhooks:
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
        found = self.get(project_id, id)
        assert found is not None
        return found

    def get(self, project_id: str, id: str) -> Webhook | None:
        row = self._db.row("SELECT * FROM webhooks WHERE project_id = ? AND id = ?", project_id, id)
        return None if row is None else _webhook(row)

    def of_project(self, project_id: str) -> list[Webhook]:
        rows = self._db.rows("SELECT * FROM webhooks WHERE project_id = ? ORDER BY created_at", project_id)
        return [_webhook(row) for row in rows]

    def due(self, now: float, last: int) -> list[Webhook]:
        """The webhooks that may have something to send."""
        rows = self._db.rows("SELECT * FROM webhooks WHERE next_at <= ? AND since < ? ORDER BY next_at", now, last)
        return [_webhook(row) for row in rows]

    async def remove(self, project_id: str, id: str) -> bool:
        return await self._db.execute("DELETE FROM webhooks WHERE project_id = ? AND id = ?", project_id, id) > 0

    async def progress(
        self, id: str, since: int, *, attempts: int = 0, next_at: float = 0.0, status: str = "", dropped: int = 0
    ) -> None:
        """Note the webhook's position."""
        await self._db.execute(
            "UPDATE webhooks SET since = ?, attempts = ?, next_at = ?, last_status = ?, dropped = dropped + ?"
            " WHERE id = ?",
            *(since, attempts, next_at, status, dropped, id),
        )
