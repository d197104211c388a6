"""The store over one SQLite file."""

from __future__ import annotations

import secrets
import sqlite3
from functools import partial
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from skerry.server.store import contract
from skerry.server.store.accounts import Accounts
from skerry.server.store.sqlite.audit import Audit
from skerry.server.store.sqlite.backup import back_up, backups
from skerry.server.store.sqlite.database import Database
from skerry.server.store.sqlite.events import Events
from skerry.server.store.sqlite.keys import Keys
from skerry.server.store.sqlite.leases import Leases
from skerry.server.store.sqlite.ownership import Ownership
from skerry.server.store.sqlite.projects import Projects
from skerry.server.store.sqlite.users import Users
from skerry.server.store.sqlite.webhooks import Webhooks

LOOK_EVERY = 0.5
"""Seconds between two looks at whether another process has written."""


def open_store(path: str, provider: str) -> Store:
    return Store(Path(path), provider)


class Store(contract.Store):
    def __init__(self, path: Path, provider: str) -> None:
        self.accounts = Accounts()
        self.db = Database(path, self.accounts, provider)
        self.users = Users(self.db)
        self.projects = Projects(self.db)
        self.keys = Keys(self.db)
        self.ownership = Ownership(self.db)
        self.events = Events(self.db)
        self.audit = Audit(self.db)
        self.webhooks = Webhooks(self.db)
        self.leases = Leases(self.db)
        self._secrets: dict[str, bytes] = {}

    async def refresh(self) -> bool:
        return await self.db.refresh()

    async def follow(self) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY)
            await self.refresh()

    async def secret(self, name: str) -> bytes:
        def work(db: sqlite3.Connection) -> bytes:
            db.execute("INSERT OR IGNORE INTO server_secrets VALUES (?, ?)", (name, secrets.token_bytes(32)))
            return bytes(db.execute("SELECT value FROM server_secrets WHERE name = ?", (name,)).fetchone()[0])

        if name not in self._secrets:
            self._secrets[name] = await self.db.write(work)
        return self._secrets[name]

    async def back_up(self, *, keep: int) -> None:
        await run_sync(partial(back_up, self.db.path, keep=keep))

    async def backed_up_at(self) -> float | None:
        there = backups(self.db.path.parent)
        return there[-1].stat().st_mtime if there else None

    async def close(self) -> None:
        await run_sync(self.db.close)
