"""What a server stores, as plain data; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from skerry.server.access.permissions import Role, Scope

Kind = Literal["sandbox", "snapshot", "volume", "template"]
LeaseKind = Literal["sandbox", "snapshot"]


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    id: str
    name: str
    admin: bool
    disabled: bool
    created_at: float
    has_password: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    hash: bytes
    user_id: str
    expires_at: float


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
class Membership:
    project_id: str
    user_id: str
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    user_id: str
    user_name: str
    role: Role


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Belonging:
    """A thing that belongs to a project or, if it was made without the server, to none."""

    kind: Kind
    id: str
    """The provider's id; for a volume its name there; for a template its name without a version."""
    provider: str
    """The name of the provider that has it."""
    project_id: str | None
    """None: it was made without the server, so only administrators see it."""
    name: str | None
    """As users see it."""
    gone: bool = False
    made_by: str | None = None
    """The id of the user who made it; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A sandbox or a hidden snapshot ends with a client."""

    kind: LeaseKind
    id: str
    holder: str
    """The name that a client's process has given itself; nobody can guess it."""
    process: int
    """The client's process id, for people who look."""
    preparing: bool = False
    """Whether its holder still has to complete it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvent:
    seq: int
    sandbox_id: str
    project_id: str | None
    type: str
    time: float
    data: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    time: float
    actor: str
    """`user:<name>`, `token:<id>` or `anonymous`."""
    credential: str
    """`session`, `key:<id>`, `token:<id>`, `ticket` or nothing."""
    action: str
    operation: str
    """The method and the route, or the opener of a stream."""
    target: str
    project_id: str | None
    outcome: str
    """`ok`, or the code of the error."""
    address: str
    request_id: str
    seq: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    id: str
    project_id: str
    url: str
    secret: str = field(repr=False)
    types: tuple[str, ...]
    """Empty: all."""
    created_by: str
    created_at: float
    since: int
    """The last event that was delivered or dropped."""
    attempts: int
    """Attempts for the next event."""
    next_at: float
    last_status: str
    dropped: int
