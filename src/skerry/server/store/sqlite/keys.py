"""API keys of users and tokens of sandboxes; only hashes of both are stored."""

from __future__ import annotations

import time

from skerry.server.access.permissions import Role, Scope
from skerry.server.access.secrets import new_secret
from skerry.server.store import contract
from skerry.server.store.records import ApiKey, SandboxToken
from skerry.server.store.sqlite.database import Database


class Keys(contract.Keys):
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

    async def note_use(self, key: ApiKey) -> None:
        now = time.time()
        if key.last_used_at is None or now - key.last_used_at > contract.USE_NOTED:
            await self._db.execute("UPDATE api_keys SET last_used_at = ? WHERE id = ?", now, key.id)

    async def remove(self, id: str) -> None:
        await self._db.execute("DELETE FROM api_keys WHERE id = ?", id)

    async def add_token(
        self, sandbox_id: str, project_id: str, role: Role, *, created_by: str, expires_at: float | None
    ) -> tuple[SandboxToken, str]:
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

    async def remove_token(self, sandbox_id: str, id: str) -> bool:
        sql = "DELETE FROM sandbox_tokens WHERE sandbox_id = ? AND id = ?"
        return await self._db.execute(sql, sandbox_id, id) > 0
