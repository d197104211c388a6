"""Which sandboxes, snapshots, volumes and names of templates belong to which project."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from skerry.server.store.database import Database

Kind = Literal["sandbox", "snapshot", "volume", "template"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Belonging:
    kind: Kind
    id: str
    """The provider's id; for a volume its name there; for a template its name without a version."""
    project_id: str | None
    """None: it was made without the server, so only administrators see it."""
    name: str | None
    """As users see it."""
    gone: bool = False
    made_by: str | None = None
    """The id of the user who made it; None: not known."""


def _belonging(row: sqlite3.Row) -> Belonging:
    return Belonging(
        kind=row["kind"],
        id=row["id"],
        project_id=row["project_id"],
        name=row["name"],
        gone=row["gone_at"] is not None,
        made_by=row["made_by"],
    )


class Belongings:
    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, kind: Kind, id: str) -> Belonging | None:
        row = self._db.row("SELECT * FROM belongings WHERE kind = ? AND id = ?", kind, id)
        return None if row is None else _belonging(row)

    def named(self, kind: Kind, project_id: str | None, name: str) -> list[Belonging]:
        """What has a name now: one thing in a project; without a project there may be several."""
        rows = self._db.rows(
            "SELECT * FROM belongings WHERE kind = ? AND project_id IS ? AND name = ? AND gone_at IS NULL",
            *(kind, project_id, name),
        )
        return [_belonging(row) for row in rows]

    def there(self, kind: Kind) -> list[Belonging]:
        """All existing things of a kind."""
        return [
            _belonging(row)
            for row in self._db.rows("SELECT * FROM belongings WHERE kind = ? AND gone_at IS NULL", kind)
        ]

    async def put(self, belongings: Iterable[Belonging]) -> None:
        """Note that these exist; replaces earlier notes, except for who made them."""
        rows = [(item.kind, item.id, item.project_id, item.name, time.time(), item.made_by) for item in belongings]
        if rows:
            sql = (
                "INSERT INTO belongings VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6) ON CONFLICT DO UPDATE"
                " SET project_id = ?3, name = ?4, gone_at = NULL, made_by = coalesce(belongings.made_by, ?6)"
            )
            await self._db.write(lambda db: db.executemany(sql, rows))

    async def claim(self, item: Belonging) -> Belonging:
        """Note a thing that nobody owns yet; returns the note of the first request that noted it."""
        row = (item.kind, item.id, item.project_id, item.name, time.time())
        sql = (
            "INSERT INTO belongings VALUES (?1, ?2, ?3, ?4, ?5, NULL, NULL)"
            " ON CONFLICT DO UPDATE SET project_id = ?3, name = ?4, gone_at = NULL WHERE gone_at IS NOT NULL"
        )
        await self._db.write(lambda db: db.execute(sql, row))
        return self.get(item.kind, item.id) or item

    async def gone(self, kind: Kind, ids: Iterable[str]) -> None:
        rows = [(time.time(), kind, id) for id in ids]
        if rows:
            sql = "UPDATE belongings SET gone_at = ? WHERE kind = ? AND id = ?"
            await self._db.write(lambda db: db.executemany(sql, rows))
