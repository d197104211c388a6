"""The server's database: one SQLite file, and a repository for each kind of thing in it."""

from __future__ import annotations

import secrets
from pathlib import Path

from skerry.server.store.audit import Audit, AuditEntry
from skerry.server.store.database import Database
from skerry.server.store.events import Events, StoredEvent
from skerry.server.store.keys import ApiKey, Keys, SandboxToken
from skerry.server.store.leases import LeaseStore
from skerry.server.store.ownership import Belonging, Belongings
from skerry.server.store.projects import Member, Project, Projects
from skerry.server.store.users import User, Users
from skerry.server.store.webhooks import Webhook, Webhooks

FILE = "skerry.db"


class Store:
    """All repositories over one database."""

    def __init__(self, directory: Path) -> None:
        """Raises Corrupted for a damaged file, DiskFull, ProviderUnavailable."""
        self.db = Database(directory / FILE)
        self.users = Users(self.db)
        self.projects = Projects(self.db)
        self.keys = Keys(self.db)
        self.belongings = Belongings(self.db)
        self.events = Events(self.db)
        self.audit = Audit(self.db)
        self.webhooks = Webhooks(self.db)
        self.leases = LeaseStore(self.db)

    async def secret(self, name: str) -> bytes:
        """A random secret of this server that outlives restarts, made at its first use."""
        sql = "INSERT OR IGNORE INTO server_secrets VALUES (?, ?)"
        await self.db.execute(sql, name, secrets.token_bytes(32))
        row = self.db.row("SELECT value FROM server_secrets WHERE name = ?", name)
        assert row is not None
        return bytes(row["value"])

    def close(self) -> None:
        self.db.close()


__all__ = [
    "FILE",
    "ApiKey",
    "AuditEntry",
    "Belonging",
    "Member",
    "Project",
    "SandboxToken",
    "Store",
    "StoredEvent",
    "User",
    "Webhook",
]
