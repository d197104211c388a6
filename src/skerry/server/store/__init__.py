"""The server's database: what it stores, the accounts in memory, and the contract that a database implements."""

from __future__ import annotations

from skerry.server.store.accounts import Accounts
from skerry.server.store.contract import Store
from skerry.server.store.records import (
    ApiKey,
    AuditEntry,
    Belonging,
    Kind,
    Lease,
    LeaseKind,
    Member,
    Project,
    SandboxToken,
    StoredEvent,
    User,
    Webhook,
)

__all__ = [
    "Accounts",
    "ApiKey",
    "AuditEntry",
    "Belonging",
    "Kind",
    "Lease",
    "LeaseKind",
    "Member",
    "Project",
    "SandboxToken",
    "Store",
    "StoredEvent",
    "User",
    "Webhook",
]
