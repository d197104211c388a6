"""The accounts as a view in memory: who there is, who may what, and whose a thing is, without waiting for a database.

The store changes the view when a transaction is committed, in the order of the commits, and between two steps of the
event loop: a check never sees half of a change. What other processes commit arrives within a second. Things that are
gone are not in it: `Ownership.get` knows them.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from skerry.core import NotFound
from skerry.server.access.permissions import Role
from skerry.server.access.secrets import digest, id_in
from skerry.server.store.records import (
    ApiKey,
    Belonging,
    Kind,
    Lease,
    LeaseKind,
    Member,
    Membership,
    Project,
    SandboxToken,
    Session,
    User,
)

V = TypeVar("V")
TableName = Literal["users", "sessions", "projects", "members", "keys", "tokens", "belongings", "leases"]


@dataclass(frozen=True, slots=True)
class Change:
    """A row as it is after a commit; None: it is no longer there."""

    table: TableName
    key: Hashable
    row: Any


class _Table(Generic[V]):
    """Rows by key, and by what else they are looked up by."""

    def __init__(self, **indexes: Callable[[V], Hashable]) -> None:
        self.rows: dict[Any, V] = {}
        self._indexes = [(of, dict[Hashable, dict[Any, V]]()) for of in indexes.values()]
        self._by = dict(zip(indexes, (found for _, found in self._indexes), strict=True))

    def put(self, key: Hashable, row: V | None) -> None:
        before = self.rows.pop(key, None)
        for of, found in self._indexes:
            if before is not None:
                among = found[of(before)]
                del among[key]
                if not among:
                    del found[of(before)]
            if row is not None:
                found.setdefault(of(row), {})[key] = row
        if row is not None:
            self.rows[key] = row

    def where(self, index: str, value: Hashable) -> list[V]:
        return list(self._by[index].get(value, {}).values())


class Accounts:
    """Look-ups in memory. Only a store changes it, in the thread of the event loop."""

    def __init__(self) -> None:
        self._users = _Table[User](name=lambda user: user.name)
        self._sessions = _Table[Session]()
        self._projects = _Table[Project](slug=lambda project: project.slug)
        self._members = _Table[Membership](project=lambda item: item.project_id, user=lambda item: item.user_id)
        self._keys = _Table[tuple[ApiKey, bytes]](user=lambda pair: pair[0].user_id)
        self._tokens = _Table[tuple[SandboxToken, bytes]](sandbox=lambda pair: pair[0].sandbox_id)
        self._belongings = _Table[Belonging](
            kind=lambda item: item.kind, name=lambda item: (item.kind, item.project_id, item.name)
        )
        self._leases = _Table[Lease]()

    # -- for stores

    def apply(self, changes: Iterable[Change]) -> None:
        """Take over what one transaction has changed."""
        for change in changes:
            table: _Table[Any] = getattr(self, f"_{change.table}")
            table.put(change.key, change.row)

    def become(self, fresh: Accounts) -> None:
        """Take over what was loaded again."""
        vars(self).update(vars(fresh))

    def rows(self) -> dict[str, dict[Any, Any]]:
        """All rows of all tables, to compare with those of another view."""
        return {name: dict(table.rows) for name, table in vars(self).items()}

    # -- users

    def user(self, id: str) -> User | None:
        return self._users.rows.get(id)

    def find_user(self, id_or_name: str) -> User:
        """Raises NotFound."""
        for found in (self.user(id_or_name), *self._users.where("name", id_or_name)):
            if found is not None:
                return found
        raise NotFound(f"there is no user {id_or_name!r}")

    def users(self) -> list[User]:
        """All, by name."""
        return sorted(self._users.rows.values(), key=lambda user: user.name)

    def session(self, hash: bytes) -> tuple[User, float] | None:
        """The user of a session and when it ends; None if there is no valid one."""
        found = self._sessions.rows.get(hash)
        user = None if found is None else self.user(found.user_id)
        if found is None or user is None or user.disabled or found.expires_at <= time.time():
            return None
        return user, found.expires_at

    # -- keys and tokens

    def check_key(self, text: str) -> ApiKey | None:
        """The key with that text, if it is valid."""
        return _checked(self._keys, text, "sk")

    def key(self, id: str) -> ApiKey | None:
        found = self._keys.rows.get(id)
        return None if found is None else found[0]

    def keys_of(self, user_id: str) -> list[ApiKey]:
        """Oldest first."""
        return sorted((key for key, _ in self._keys.where("user", user_id)), key=lambda key: key.created_at)

    def check_token(self, text: str) -> SandboxToken | None:
        """The token with that text, if it is valid."""
        return _checked(self._tokens, text, "st")

    def token(self, id: str) -> SandboxToken | None:
        found = self._tokens.rows.get(id)
        return None if found is None else found[0]

    def tokens_of(self, sandbox_id: str) -> list[SandboxToken]:
        """Oldest first."""
        found = (token for token, _ in self._tokens.where("sandbox", sandbox_id))
        return sorted(found, key=lambda token: token.created_at)

    # -- projects

    def project(self, id: str | None) -> Project | None:
        return self._projects.rows.get(id)

    def project_with_slug(self, slug: str) -> Project | None:
        return next(iter(self._projects.where("slug", slug)), None)

    def projects(self) -> list[Project]:
        """All, by name."""
        return sorted(self._projects.rows.values(), key=_by_name)

    def projects_of(self, user_id: str) -> list[Project]:
        """The projects of which a user is a member, the personal one first, then by name."""
        found = [self._projects.rows[item.project_id] for item in self._members.where("user", user_id)]
        return sorted(found, key=lambda project: (project.personal_of != user_id, *_by_name(project)))

    def role(self, project_id: str, user_id: str) -> Role | None:
        found = self._members.rows.get((project_id, user_id))
        return None if found is None else found.role

    def members(self, project_id: str) -> list[Member]:
        """By name."""
        found = [
            Member(user_id=item.user_id, user_name=self._users.rows[item.user_id].name, role=item.role)
            for item in self._members.where("project", project_id)
        ]
        return sorted(found, key=lambda member: member.user_name)

    def share_project(self, one: str, other: str) -> bool:
        """Whether two users are members of the same project."""
        return any(self.role(item.project_id, other) for item in self._members.where("user", one))

    # -- what belongs to projects

    def owned(self, kind: Kind, id: str) -> Belonging | None:
        """The note of a thing that exists."""
        return self._belongings.rows.get((kind, id))

    def named(self, kind: Kind, project_id: str | None, name: str) -> list[Belonging]:
        """What has a name now: one thing in a project; without a project there may be several."""
        return self._belongings.where("name", (kind, project_id, name))

    def all_owned(self, kind: Kind) -> list[Belonging]:
        """All existing things of a kind."""
        return self._belongings.where("kind", kind)

    def lease(self, kind: LeaseKind, id: str) -> Lease | None:
        return self._leases.rows.get((kind, id))

    def leases(self) -> list[Lease]:
        return list(self._leases.rows.values())


def _by_name(project: Project) -> tuple[str, str]:
    return project.name, project.id


C = TypeVar("C", ApiKey, SandboxToken)


def _checked(table: _Table[tuple[C, bytes]], text: str, kind: str) -> C | None:
    id = id_in(text, kind)
    found = None if id is None else table.rows.get(id)
    if found is None or not hmac.compare_digest(found[1], digest(text)):
        return None
    lasts = found[0].expires_at is None or found[0].expires_at > time.time()
    return found[0] if lasts else None
