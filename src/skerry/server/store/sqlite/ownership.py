"""Which sandboxes, snapshots, volumes and names of templates belong to which project."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

from skerry.server.store import contract
from skerry.server.store.records import Belonging, Kind
from skerry.server.store.sqlite.database import Database
from skerry.server.store.sqlite.rows import belonging

_INSERT = (
    "INSERT INTO belongings (kind, id, provider, project_id, name, created_at, made_by) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET provider = excluded.provider, project_id = excluded.project_id, name = excluded.name,"
    " gone_at = NULL"
)


class Ownership(contract.Ownership):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, kind: Kind, id: str) -> Belonging | None:
        row = await self._db.row("SELECT * FROM belongings WHERE kind = ? AND id = ?", kind, id)
        return None if row is None else belonging(row)

    async def put(self, items: Iterable[Belonging]) -> None:
        rows = [_row(item) for item in items]
        if rows:
            sql = f"{_INSERT}, made_by = coalesce(belongings.made_by, excluded.made_by)"
            await self._db.write(lambda db: db.executemany(sql, rows))

    async def claim(self, item: Belonging) -> Belonging:
        def work(db: sqlite3.Connection) -> Belonging:
            db.execute(f"{_INSERT} WHERE gone_at IS NOT NULL", _row(item))
            key = (item.kind, item.id)
            return belonging(db.execute("SELECT * FROM belongings WHERE kind = ? AND id = ?", key).fetchone())

        return await self._db.write(work)

    async def gone(self, kind: Kind, ids: Iterable[str]) -> None:
        rows = [(time.time(), kind, id) for id in ids]
        if rows:
            sql = "UPDATE belongings SET gone_at = ? WHERE kind = ? AND id = ?"
            await self._db.write(lambda db: db.executemany(sql, rows))


def _row(item: Belonging) -> tuple[object, ...]:
    return (item.kind, item.id, item.provider, item.project_id, item.name, time.time(), item.made_by)
