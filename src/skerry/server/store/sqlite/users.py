"""Users, their sessions, and links that sign in once."""

from __future__ import annotations

import sqlite3
import time

from skerry.core import PROJECT, USER, Conflict, new_id, new_slug
from skerry.server.store import contract
from skerry.server.store.records import User
from skerry.server.store.sqlite.database import Database
from skerry.server.store.sqlite.rows import user


class Users(contract.Users):
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, name: str, *, password: str | None = None, admin: bool = False) -> User:
        made = User(
            id=new_id(USER),
            name=name,
            admin=admin,
            disabled=False,
            created_at=time.time(),
            has_password=password is not None,
        )

        def work(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM users WHERE name = ?", (name,)).fetchone():
                raise Conflict(f"the name {name!r} is taken by another user")
            db.execute(
                "INSERT INTO users (id, name, password, admin, created_at) VALUES (?, ?, ?, ?, ?)",
                (made.id, name, password, admin, made.created_at),
            )
            project = new_id(PROJECT)
            db.execute(
                "INSERT INTO projects (id, slug, name, personal_of, created_at) VALUES (?, ?, ?, ?, ?)",
                (project, new_slug(), name, made.id, made.created_at),
            )
            db.execute("INSERT INTO members VALUES (?, ?, 'owner')", (project, made.id))

        await self._db.write(work)
        return made

    async def password(self, name: str) -> tuple[str | None, User] | None:
        row = await self._db.row("SELECT * FROM users WHERE name = ?", name)
        return None if row is None else (row["password"], user(row))

    async def change(
        self, id: str, *, password: str | None = None, admin: bool | None = None, disabled: bool | None = None
    ) -> None:

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
            if admin is not None or disabled is not None:
                _keep_an_admin(db)

        await self._db.write(work)

    async def remove(self, id: str) -> None:

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

    async def extend_session(self, hash: bytes, expires_at: float) -> None:
        await self._db.execute("UPDATE sessions SET expires_at = ? WHERE hash = ?", expires_at, hash)

    async def end_session(self, hash: bytes) -> None:
        await self._db.execute("DELETE FROM sessions WHERE hash = ?", hash)

    async def end_sessions(self, user_id: str) -> None:
        await self._db.execute("DELETE FROM sessions WHERE user_id = ?", user_id)

    async def add_link(self, user_id: str, hash: bytes, *, lifetime: float) -> None:
        now = time.time()

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sign_in_links WHERE expires_at < ?", (now,))
            db.execute("INSERT INTO sign_in_links VALUES (?, ?, ?)", (hash, user_id, now + lifetime))

        await self._db.write(work)

    async def use_link(self, hash: bytes) -> User | None:
        now = time.time()

        def work(db: sqlite3.Connection) -> User | None:
            row = db.execute(
                "SELECT users.* FROM sign_in_links JOIN users ON users.id = user_id"
                " WHERE hash = ? AND expires_at > ? AND NOT disabled",
                (hash, now),
            ).fetchone()
            db.execute("DELETE FROM sign_in_links WHERE hash = ?", (hash,))
            return None if row is None else user(row)

        return await self._db.write(work)


def _keep_an_admin(db: sqlite3.Connection) -> None:
    if not db.execute("SELECT 1 FROM users WHERE admin AND NOT disabled").fetchone():
        raise Conflict("no administrator would be left", hint="make another user an administrator first")
