"""Projects and their members."""

from __future__ import annotations

import sqlite3
import time

from skerry.core import PROJECT, Conflict, new_id, new_slug
from skerry.server.access.permissions import Role
from skerry.server.store import contract
from skerry.server.store.records import Project
from skerry.server.store.sqlite.database import Database


class Projects(contract.Projects):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, name: str, owner: str) -> Project:
        project = Project(
            id=new_id(PROJECT), slug=new_slug(), name=name, personal_of=None, created_at=time.time(), made_by=owner
        )

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO projects (id, slug, name, created_at, made_by) VALUES (?, ?, ?, ?, ?)",
                (project.id, project.slug, name, project.created_at, owner),
            )
            db.execute("INSERT INTO members VALUES (?, ?, 'owner')", (project.id, owner))

        await self._db.write(work)
        return project

    async def set_member(self, project_id: str, user_id: str, role: Role | None) -> None:

        def work(db: sqlite3.Connection) -> None:
            if role is None:
                db.execute("DELETE FROM members WHERE project_id = ? AND user_id = ?", (project_id, user_id))
            else:
                db.execute(
                    "INSERT INTO members VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET role = ?3",
                    (project_id, user_id, role),
                )
            if not db.execute(
                "SELECT 1 FROM members WHERE project_id = ? AND role = 'owner'", (project_id,)
            ).fetchone():
                raise Conflict("the project would have no owner", hint="make another member its owner first")

        await self._db.write(work)

    async def rename(self, id: str, name: str) -> None:
        await self._db.execute("UPDATE projects SET name = ? WHERE id = ?", name, id)

    async def remove(self, id: str) -> None:

        def work(db: sqlite3.Connection) -> None:
            (left,) = db.execute(
                "SELECT count(*) FROM belongings WHERE project_id = ? AND kind = 'sandbox' AND gone_at IS NULL", (id,)
            ).fetchone()
            if left:
                what = f"{left} sandbox{'' if left == 1 else 'es'}"
                raise Conflict(f"the project still has {what}", hint="remove them first")
            db.execute("DELETE FROM projects WHERE id = ?", (id,))

        await self._db.write(work)
