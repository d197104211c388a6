"""Projects and their members."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from skerry.core import PROJECT, Conflict, new_id, new_slug
from skerry.server.access.permissions import Role
from skerry.server.store.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    id: str
    slug: str
    name: str
    personal_of: str | None
    """The user whose personal project it is."""
    created_at: float
    made_by: str | None = None
    """The user who made it; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    user_id: str
    user_name: str
    role: Role


def _project(row: sqlite3.Row) -> Project:
    return Project(
        id=row["id"],
        slug=row["slug"],
        name=row["name"],
        personal_of=row["personal_of"],
        created_at=row["created_at"],
        made_by=row["made_by"],
    )


class Projects:
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

    def get(self, id: str) -> Project | None:
        row = self._db.row("SELECT * FROM projects WHERE id = ?", id)
        return None if row is None else _project(row)

    def by_slug(self, slug: str) -> Project | None:
        row = self._db.row("SELECT * FROM projects WHERE slug = ?", slug)
        return None if row is None else _project(row)

    def of_user(self, user_id: str) -> list[tuple[Project, Role]]:
        """The projects of which a user is a member, the personal one first, then by name."""
        rows = self._db.rows(
            "SELECT projects.*, role FROM members JOIN projects ON id = project_id WHERE user_id = ?1"
            " ORDER BY personal_of IS NOT ?1, name, id",
            user_id,
        )
        return [(_project(row), Role(row["role"])) for row in rows]

    def all(self) -> list[Project]:
        return [_project(row) for row in self._db.rows("SELECT * FROM projects ORDER BY name, id")]

    def role(self, project_id: str, user_id: str) -> Role | None:
        row = self._db.row("SELECT role FROM members WHERE project_id = ? AND user_id = ?", project_id, user_id)
        return None if row is None else Role(row["role"])

    def members(self, project_id: str) -> list[Member]:
        rows = self._db.rows(
            "SELECT users.id, users.name, role FROM members JOIN users ON users.id = user_id"
            " WHERE project_id = ? ORDER BY users.name",
            project_id,
        )
        return [Member(user_id=row["id"], user_name=row["name"], role=Role(row["role"])) for row in rows]

    def share_one(self, one: str, other: str) -> bool:
        """Whether two users are members of the same project."""
        sql = "SELECT 1 FROM members a JOIN members b USING (project_id) WHERE a.user_id = ? AND b.user_id = ?"
        return self._db.row(sql, one, other) is not None

    async def set_member(self, project_id: str, user_id: str, role: Role | None) -> None:
        """Give a user a role, or remove the user. Raises Conflict if no owner would be left."""

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
        """Raises Conflict while a sandbox belongs to it; only the provider knows its snapshots and volumes."""

        def work(db: sqlite3.Connection) -> None:
            (left,) = db.execute(
                "SELECT count(*) FROM belongings WHERE project_id = ? AND kind = 'sandbox' AND gone_at IS NULL", (id,)
            ).fetchone()
            if left:
                what = f"{left} sandbox{'' if left == 1 else 'es'}"
                raise Conflict(f"the project still has {what}", hint="remove them first")
            db.execute("DELETE FROM projects WHERE id = ?", (id,))

        await self._db.write(work)
