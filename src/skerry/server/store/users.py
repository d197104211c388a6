"""Users, their sessions, and links that sign in once."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from skerry.core import PROJECT, USER, Conflict, NotFound, new_id, new_slug
from skerry.server.store.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    id: str
    name: str
    admin: bool
    disabled: bool
    created_at: float
    has_password: bool


def _user(row: sqlite3.Row) -> User:
    return User(
        id=row["id"],
        name=row["name"],
        admin=bool(row["admin"]),
        disabled=bool(row["disabled"]),
        created_at=row["created_at"],
        has_password=row["password"] is not None,
    )


class Users:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, name: str, *, password: str | None = None, admin: bool = False) -> User:
        """A user with a personal project; `password` is already hashed. Raises Conflict for a taken name."""
        user = User(
            id=new_id(USER),
            name=name,
            admin=admin,
            disabled=False,
            created_at=time.time(),
            has_password=password is not None,
        )

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO users (id, name, password, admin, created_at) VALUES (?, ?, ?, ?, ?)",
                (user.id, name, password, admin, user.created_at),
            )
            project = new_id(PROJECT)
            db.execute(
                "INSERT INTO projects (id, slug, name, personal_of, created_at) VALUES (?, ?, ?, ?, ?)",
                (project, new_slug(), name, user.id, user.created_at),
            )
            db.execute("INSERT INTO members VALUES (?, ?, 'owner')", (project, user.id))

        try:
            await self._db.write(work)
        except sqlite3.IntegrityError:
            raise Conflict(f"the name {name!r} is taken by another user") from None
        return user

    def get(self, id: str) -> User | None:
        row = self._db.row("SELECT * FROM users WHERE id = ?", id)
        return None if row is None else _user(row)

    def find(self, id_or_name: str) -> User:
        """Raises NotFound."""
        row = self._db.row("SELECT * FROM users WHERE id = ?1 OR name = ?1", id_or_name)
        if row is None:
            raise NotFound(f"there is no user {id_or_name!r}")
        return _user(row)

    def list(self) -> list[User]:
        return [_user(row) for row in self._db.rows("SELECT * FROM users ORDER BY name")]

    def password(self, name: str) -> tuple[str | None, User] | None:
        """The stored hash of a user's password."""
        row = self._db.row("SELECT * FROM users WHERE name = ?", name)
        return None if row is None else (row["password"], _user(row))

    async def change(
        self, id: str, *, password: str | None = None, admin: bool | None = None, disabled: bool | None = None
    ) -> None:
        """Change the given fields. A new password, or being disabled, ends the user's sessions.

        Raises Conflict if no administrator would be left.
        """

        def work(db: sqlite3.Connection) -> None:
            if password is not None:
                db.execute("UPDATE users SET password = ? WHERE id = ?", (password, id))
            if admin is not None:
                db.execute("UPDATE users SET admin = ? WHERE id = ?", (admin, id))
            if disabled is not None:
                db.execute("UPDATE users SET disabled = ? WHERE id = ?", (disabled, id))
            if password is not None or disabled:
                db.execute("DELETE FROM sessions WHERE user_id = ?", (id,))
                db.execute("DELETE FROM sign_in_links WHERE user_id = ?", (id,))
            _keep_an_admin(db)

        await self._db.write(work)

    async def remove(self, id: str) -> None:
        """Remove a user with keys, sessions and memberships; the personal project stays, for administrators.

        Raises Conflict if no administrator would be left.
        """

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM users WHERE id = ?", (id,))
            _keep_an_admin(db)

        await self._db.write(work)

    async def add_session(self, user_id: str, hash: bytes, *, lifetime: float, address: str) -> None:
        now = time.time()

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sessions WHERE expires_at < ?", (now,))
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", (hash, user_id, now, now + lifetime, address))

        await self._db.write(work)

    def session(self, hash: bytes) -> tuple[User, float] | None:
        """The user of a session and when it ends; None if there is no valid one."""
        row = self._db.row(
            "SELECT users.*, expires_at FROM sessions JOIN users ON users.id = user_id"
            " WHERE hash = ? AND expires_at > ? AND NOT disabled",
            hash,
            time.time(),
        )
        return None if row is None else (_user(row), row["expires_at"])

    async def extend_session(self, hash: bytes, expires_at: float) -> None:
        await self._db.execute("UPDATE sessions SET expires_at = ? WHERE hash = ?", expires_at, hash)

    async def end_session(self, hash: bytes) -> None:
        await self._db.execute("DELETE FROM sessions WHERE hash = ?", hash)

    async def end_sessions(self, user_id: str) -> int:
        return await self._db.execute("DELETE FROM sessions WHERE user_id = ?", user_id)

    async def add_link(self, user_id: str, hash: bytes, *, lifetime: float) -> None:
        now = time.time()

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sign_in_links WHERE expires_at < ?", (now,))
            db.execute("INSERT INTO sign_in_links VALUES (?, ?, ?)", (hash, user_id, now + lifetime))

        await self._db.write(work)

    async def use_link(self, hash: bytes) -> User | None:
        """The user of a link. Uses the link up."""
        now = time.time()

        def work(db: sqlite3.Connection) -> User | None:
            row = db.execute(
                "SELECT users.* FROM sign_in_links JOIN users ON users.id = user_id"
                " WHERE hash = ? AND expires_at > ? AND NOT disabled",
                (hash, now),
            ).fetchone()
            db.execute("DELETE FROM sign_in_links WHERE hash = ?", (hash,))
            return None if row is None else _user(row)

        return await self._db.write(work)


def _keep_an_admin(db: sqlite3.Connection) -> None:
    if not db.execute("SELECT 1 FROM users WHERE admin AND NOT disabled").fetchone():
        raise Conflict("no administrator would be left", hint="make another user an administrator first")
