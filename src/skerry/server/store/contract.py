"""What a server asks of its database. `tests/server/store/test_contract.py` checks every implementation.

A store keeps `accounts` equal to the database: a write returns once the view has what it committed, and an error leaves
both as they were. Every verb raises DiskFull, Corrupted or ProviderUnavailable for what the database cannot do, and
Conflict if a row that it refers to was removed in the meantime. Cancelling a write does not undo it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from skerry.core import Event, InvalidArgument
from skerry.server.access.permissions import Role, Scope
from skerry.server.access.rate_limits import Buckets
from skerry.server.store.accounts import Accounts
from skerry.server.store.records import (
    ApiKey,
    AuditEntry,
    Belonging,
    Kind,
    Lease,
    LeaseKind,
    Project,
    SandboxToken,
    StoredEvent,
    User,
    Webhook,
)

USE_NOTED = 60.0
"""How old the time of a key's last use may be before it is written again."""
_SCHEMES = {"sqlite": "skerry.server.store.sqlite"}
"""The modules by scheme; each has `open_store(rest of the URL, provider)`."""


class Store(ABC):
    """A database, open. `accounts` is read without waiting; everything else waits."""

    accounts: Accounts
    users: Users
    projects: Projects
    keys: Keys
    ownership: Ownership
    events: Events
    audit: Audit
    webhooks: Webhooks
    leases: Leases

    @staticmethod
    def open(where: str | Path, *, provider: str = "local") -> Store:
        """Open a database, bring its schema up to date and load the accounts; blocks until that is done.

        `where` is the path of an SQLite file, made if it does not exist, or a URL such as `sqlite:///var/skerry.db`.
        `provider` has what a database from before there were several notes without a provider.

        Raises InvalidArgument for an unknown scheme, Corrupted for a damaged database, ProviderUnavailable for one that
        a newer version wrote, DiskFull.
        """
        scheme, colon, rest = str(where).partition("://")
        if isinstance(where, Path) or not colon:
            scheme, rest = "sqlite", str(where)
        if scheme not in _SCHEMES:
            known = ", ".join(f"{name}://" for name in sorted(_SCHEMES))
            raise InvalidArgument(
                f"there is no kind of database {scheme!r}", hint=f"give the path of an SQLite file, or one of: {known}"
            )
        store: Store = import_module(_SCHEMES[scheme]).open_store(rest, provider)
        return store

    @abstractmethod
    async def refresh(self) -> bool:
        """Bring into `accounts` what other processes have committed until now; returns whether there was anything."""

    @abstractmethod
    async def follow(self) -> None:
        """Do that for ever, within a second of each commit."""

    @abstractmethod
    async def secret(self, name: str) -> bytes:
        """A random secret of this server that outlives restarts, made at its first use."""

    @abstractmethod
    async def back_up(self, *, keep: int) -> None:
        """Copy the database as it is now; only the newest `keep` copies stay. Raises Unsupported, OSError."""

    @abstractmethod
    async def backed_up_at(self) -> float | None:
        """When the newest copy was taken."""

    @abstractmethod
    async def close(self) -> None:
        """Close the database after what is under way."""


class Users(ABC):
    @abstractmethod
    async def add(self, name: str, *, password: str | None = None, admin: bool = False) -> User:
        """A user with a personal project; `password` is already hashed. Raises Conflict for a taken name."""

    @abstractmethod
    async def password(self, name: str) -> tuple[str | None, User] | None:
        """The stored hash of a user's password."""

    @abstractmethod
    async def change(
        self, id: str, *, password: str | None = None, admin: bool | None = None, disabled: bool | None = None
    ) -> None:
        """Change the given fields. A new password, or being disabled, ends the user's sessions.

        Raises Conflict if no administrator would be left.
        """

    @abstractmethod
    async def remove(self, id: str) -> None:
        """Remove a user with keys, sessions and memberships; the personal project stays, for administrators.

        Raises Conflict if no administrator would be left.
        """

    @abstractmethod
    async def add_session(self, user_id: str, hash: bytes, *, lifetime: float, address: str) -> None:
        """Begin a session; removes those that have ended."""

    @abstractmethod
    async def extend_session(self, hash: bytes, expires_at: float) -> None: ...

    @abstractmethod
    async def end_session(self, hash: bytes) -> None: ...

    @abstractmethod
    async def end_sessions(self, user_id: str) -> None: ...

    @abstractmethod
    async def add_link(self, user_id: str, hash: bytes, *, lifetime: float) -> None:
        """Keep a link that signs a user in once; removes those that have expired."""

    @abstractmethod
    async def use_link(self, hash: bytes) -> User | None:
        """The user of a link. Uses the link up."""


class Projects(ABC):
    @abstractmethod
    async def add(self, name: str, owner: str) -> Project: ...

    @abstractmethod
    async def set_member(self, project_id: str, user_id: str, role: Role | None) -> None:
        """Give a user a role, or remove the user. Raises Conflict if no owner would be left."""

    @abstractmethod
    async def rename(self, id: str, name: str) -> None: ...

    @abstractmethod
    async def remove(self, id: str) -> None:
        """Remove a project with its memberships, keys, tokens and webhooks.

        Raises Conflict while a sandbox belongs to it; only the provider knows its snapshots and volumes.
        """


class Keys(ABC):
    """API keys of users and tokens of sandboxes; only hashes of both are stored."""

    @abstractmethod
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

    @abstractmethod
    async def note_use(self, key: ApiKey) -> None:
        """Note that a key is used now, unless that was noted in the last `USE_NOTED` seconds."""

    @abstractmethod
    async def remove(self, id: str) -> None: ...

    @abstractmethod
    async def add_token(
        self, sandbox_id: str, project_id: str, role: Role, *, created_by: str, expires_at: float | None
    ) -> tuple[SandboxToken, str]:
        """The token and its text, which is not stored."""

    @abstractmethod
    async def remove_token(self, sandbox_id: str, id: str) -> bool:
        """Returns whether there was one."""


class Ownership(ABC):
    """Which sandboxes, snapshots, volumes and names of templates belong to which project."""

    @abstractmethod
    async def get(self, kind: Kind, id: str) -> Belonging | None:
        """The note of a thing, also of one that is gone."""

    @abstractmethod
    async def put(self, items: Iterable[Belonging]) -> None:
        """Note that these exist; replaces earlier notes, except for who made them."""

    @abstractmethod
    async def claim(self, item: Belonging) -> Belonging:
        """Note a thing that nobody owns yet; returns the note of the first request that noted it."""

    @abstractmethod
    async def gone(self, kind: Kind, ids: Iterable[str]) -> None:
        """Note that these no longer exist."""


class Events(ABC):
    """Events of all sandboxes in the order they were collected: `seq` is the cursor of every stream."""

    @abstractmethod
    async def add(self, project_id: str | None, events: Iterable[Event]) -> int:
        """Store the events that are not stored yet; returns how many."""

    @abstractmethod
    async def cursor(self, sandbox_id: str) -> int:
        """The provider's cursor of the last event that was stored, even if it is pruned since."""

    @abstractmethod
    async def of_sandbox(self, sandbox_id: str) -> StoredEvent | None:
        """The last event of a sandbox."""

    @abstractmethod
    async def first(self) -> int:
        """The lowest `seq` that is kept; if none is, that of the next event."""

    @abstractmethod
    async def last(self) -> int:
        """The highest `seq` there ever was; pruning does not lower it."""

    @abstractmethod
    async def after(
        self,
        seq: int,
        *,
        projects: Sequence[str] | None = None,
        sandbox_id: str | None = None,
        types: Sequence[str] = (),
        limit: int = 100,
    ) -> list[StoredEvent]:
        """The events above `seq`: of some projects (None: of all), of one sandbox, of some types."""

    @abstractmethod
    async def prune(self, kept: float) -> int:
        """Remove events older than `kept` seconds; returns how many."""


class Audit(ABC):
    """What was changed and refused, and by whom; without secrets and contents."""

    def __init__(self) -> None:
        self.nobodies = Buckets(rate=1.0, burst=300)
        """Refusals of clients without credentials that are recorded, for each address."""

    @abstractmethod
    async def add(self, entries: Sequence[AuditEntry]) -> None: ...

    @abstractmethod
    async def before(self, seq: int | None, *, project_id: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Entries below `seq`, newest first; of one project, or of all."""

    @abstractmethod
    async def prune(self, kept: float) -> int:
        """Remove entries older than `kept` seconds; returns how many."""


class Webhooks(ABC):
    """Where events of a project are sent, and the position of each webhook."""

    @abstractmethod
    async def add(
        self, project_id: str, url: str, secret: str, types: tuple[str, ...], *, created_by: str, since: int
    ) -> Webhook: ...

    @abstractmethod
    async def get(self, project_id: str, id: str) -> Webhook | None: ...

    @abstractmethod
    async def of_project(self, project_id: str) -> list[Webhook]:
        """Oldest first."""

    @abstractmethod
    async def due(self, now: float) -> list[Webhook]:
        """The webhooks that may have something to send."""

    @abstractmethod
    async def remove(self, project_id: str, id: str) -> bool:
        """Returns whether there was one."""

    @abstractmethod
    async def progress(
        self, id: str, since: int, *, attempts: int = 0, next_at: float = 0.0, status: str = "", dropped: int = 0
    ) -> None:
        """Note the webhook's position."""


class Leases(ABC):
    """Which sandboxes and hidden snapshots end with which client; `Accounts.lease` reads them."""

    @abstractmethod
    async def put(self, lease: Lease) -> None:
        """A later holder replaces an earlier one; `preparing` stays as it was."""

    @abstractmethod
    async def remove(self, kind: LeaseKind, id: str) -> None: ...
