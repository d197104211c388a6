"""API keys of users and tokens of sandboxes; only hashes of both are stored."""

from __future__ import annotations

import hmac
import sqlite3
import time
from dataclasses import dataclass

from skerry.server.access.permissions import Role, Scope
from skerry.server.access.secrets import digest, id_in, new_secret
from skerry.server.store.database import Database

USE_NOTED = 60.0
"""How old the time of a key's last use may be before it is written again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    id: str
    user_id: str
    name: str
    scopes: frozenset[Scope]
    project_id: str | None
    created_at: float
    expires_at: float | None
    last_used_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxToken:
    id: str
    sandbox_id: str
    project_id: str
    role: Role
    created_by: str
    created_at: float
    expires_at: float | None


def _key(row: sqlite3.Row) -> ApiKey:
    return ApiKey(
        id=row["id"],
        user_id=row["user_id"],
        name=row["name"],
        scopes=frozenset(Scope(scope) for scope in row["scopes"].split()),
        project_id=row["project_id"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
    )


def _token(row: sqlite3.Row) -> SandboxToken:
    return SandboxToken(
        id=row["id"],
        sandbox_id=row["sandbox_id"],
        project_id=row["project_id"],
        role=Role(row["role"]),
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


class Keys:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(
        self,
        user_id: str,
        name: str,
        *,
        scopes: frozenset[Scope] = frozenset(Scope),
        project_id: str | None = None,
        expires_at: float | None = None,
    ) -> tuple[ApiKey, str]:
        """The key and its text, which is not stored."""
        id, text, hash = new_secret("sk")
        key = ApiKey(
            id=id,
            user_id=user_id,
            name=name,
            scopes=scopes,
            project_id=project_id,
            created_at=time.time(),
            expires_at=expires_at,
            last_used_at=None,
        )
        await self._db.execute(
            "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            *(id, user_id, name, hash, " ".join(sorted(scopes)), project_id, key.created_at, expires_at),
        )
        return key, text

    def check(self, text: str) -> ApiKey | None:
        """The key with that text, if it is valid."""
        row = self._row("api_keys", text, "sk")
        return None if row is None else _key(row)

    async def note_use(self, key: ApiKey) -> None:
        now = time.time()
        if key.last_used_at is None or now - key.last_used_at > USE_NOTED:
            await self._db.execute("UPDATE api_keys SET last_used_at = ? WHERE id = ?", now, key.id)

    def of_user(self, user_id: str) -> list[ApiKey]:
        return [
            _key(row) for row in self._db.rows("SELECT * FROM api_keys WHERE user_id = ? ORDER BY created_at", user_id)
        ]

    def get(self, id: str) -> ApiKey | None:
        row = self._db.row("SELECT * FROM api_keys WHERE id = ?", id)
        return None if row is None else _key(row)

    async def remove(self, id: str) -> None:
        await self._db.execute("DELETE FROM api_keys WHERE id = ?", id)

    async def add_token(
        self, sandbox_id: str, project_id: str, role: Role, *, created_by: str, expires_at: float | None
    ) -> tuple[SandboxToken, str]:
        """The token and its text, which is not stored."""
        id, text, hash = new_secret("st")
        token = SandboxToken(
            id=id,
            sandbox_id=sandbox_id,
            project_id=project_id,
            role=role,
            created_by=created_by,
            created_at=time.time(),
            expires_at=expires_at,
        )
        await self._db.execute(
            "INSERT INTO sandbox_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(id, sandbox_id, project_id, hash, role, created_by, token.created_at, expires_at),
        )
        return token, text

    def check_token(self, text: str) -> SandboxToken | None:
        row = self._row("sandbox_tokens", text, "st")
        return None if row is None else _token(row)

    def tokens(self, sandbox_id: str) -> list[SandboxToken]:
        rows = self._db.rows("SELECT * FROM sandbox_tokens WHERE sandbox_id = ? ORDER BY created_at", sandbox_id)
        return [_token(row) for row in rows]

    async def remove_token(self, sandbox_id: str, id: str) -> bool:
        sql = "DELETE FROM sandbox_tokens WHERE sandbox_id = ? AND id = ?"
        return await self._db.execute(sql, sandbox_id, id) > 0

    def _row(self, table: str, text: str, kind: str) -> sqlite3.Row | None:
        id = id_in(text, kind)
        row = None if id is None else self._db.row(f"SELECT * FROM {table} WHERE id = ?", id)
        if row is None or not hmac.compare_digest(row["hash"], digest(text)):
            return None
        if row["expires_at"] is not None and row["expires_at"] <= time.time():
            return None
        return row
