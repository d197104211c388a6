"""Events of all sandboxes in the order they were collected: `seq` is the cursor of every stream."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence

from skerry.core import Event
from skerry.server.store import contract
from skerry.server.store.records import StoredEvent
from skerry.server.store.sqlite.database import Database


def _event(row: sqlite3.Row) -> StoredEvent:
    return StoredEvent(
        seq=row["seq"],
        sandbox_id=row["sandbox_id"],
        project_id=row["project_id"],
        type=row["type"],
        time=row["time"],
        data=json.loads(row["data"]),
    )


class Events(contract.Events):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, project_id: str | None, events: Iterable[Event]) -> int:
        rows = [
            (event.sandbox_id, project_id, event.cursor, event.type, event.time, json.dumps(event.data))
            for event in events
        ]

        def work(db: sqlite3.Connection) -> int:
            before = db.total_changes
            db.executemany(
                "INSERT OR IGNORE INTO events (sandbox_id, project_id, cursor, type, time, data)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            added = db.total_changes - before
            db.executemany(
                "INSERT INTO event_cursors VALUES (?1, ?2) ON CONFLICT DO UPDATE SET cursor = max(cursor, ?2)",
                [(sandbox_id, cursor) for sandbox_id, _, cursor, *_ in rows],
            )
            return added

        return await self._db.write(work) if rows else 0

    async def cursor(self, sandbox_id: str) -> int:
        row = await self._db.row("SELECT cursor FROM event_cursors WHERE sandbox_id = ?", sandbox_id)
        return 0 if row is None else int(row["cursor"])

    async def of_sandbox(self, sandbox_id: str) -> StoredEvent | None:
        row = await self._db.row("SELECT * FROM events WHERE sandbox_id = ? ORDER BY cursor DESC LIMIT 1", sandbox_id)
        return None if row is None else _event(row)

    async def first(self) -> int:
        row = await self._db.row("SELECT min(seq) AS seq FROM events")
        return await self.last() + 1 if row is None or row["seq"] is None else int(row["seq"])

    async def last(self) -> int:
        row = await self._db.row("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return 0 if row is None else int(row["seq"])

    async def after(
        self,
        seq: int,
        *,
        projects: Sequence[str] | None = None,
        sandbox_id: str | None = None,
        types: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredEvent]:
        where, values = ["seq > ?"], [seq]
        for column, wanted in (("project_id", projects), ("type", types or None)):
            if wanted is not None:
                where.append(f"{column} IN ({','.join('?' * len(wanted))})")
                values += wanted  # type: ignore[arg-type]
        if sandbox_id is not None:
            where.append("sandbox_id = ?")
            values.append(sandbox_id)  # type: ignore[arg-type]
        sql = f"SELECT * FROM events WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?"
        return [_event(row) for row in await self._db.rows(sql, *values, limit)]

    async def prune(self, kept: float) -> int:
        before = time.time() - kept

        def work(db: sqlite3.Connection) -> int:
            removed = db.execute("DELETE FROM events WHERE time < ?", (before,)).rowcount
            db.execute(
                "DELETE FROM event_cursors WHERE sandbox_id NOT IN (SELECT sandbox_id FROM events) AND sandbox_id IN"
                " (SELECT id FROM belongings WHERE kind = 'sandbox' AND gone_at IS NOT NULL)"
            )
            return removed

        return await self._db.write(work)
