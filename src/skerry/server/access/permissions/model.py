"""The words of the permission tables: actions, roles, scopes, rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Action(StrEnum):
    """What a rule can allow."""

    OPEN = "open"
    """Needs no sign-in."""
    USER_SELF = "user.self"
    """The user's own account: needs a sign-in and nothing else."""
    USER_MANAGE = "user.manage"
    """The user's own keys, password and projects."""
    SANDBOX_READ = "sandbox.read"
    SANDBOX_WRITE = "sandbox.write"
    SANDBOX_DESTROY = "sandbox.destroy"
    """End a sandbox, at once or earlier than planned. The user who made it may do so, too."""
    SANDBOX_ADMIN = "sandbox.admin"
    VOLUME_READ = "volume.read"
    VOLUME_WRITE = "volume.write"
    SNAPSHOT_READ = "snapshot.read"
    SNAPSHOT_WRITE = "snapshot.write"
    TEMPLATE_READ = "template.read"
    TEMPLATE_BUILD = "template.build"
    TEMPLATE_REMOVE = "template.remove"
    PROJECT_READ = "project.read"
    PROJECT_MANAGE = "project.manage"
    SERVER_ADMIN = "server.admin"


class Role(StrEnum):
    """The role of a member of a project."""

    READ = "read"
    WRITE = "write"
    OWNER = "owner"


class Scope(StrEnum):
    """What an API key allows; its user's rights are the upper bound."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


_READ = frozenset({Action.SANDBOX_READ, Action.VOLUME_READ, Action.SNAPSHOT_READ, Action.PROJECT_READ})
_WRITE = _READ | {Action.SANDBOX_WRITE, Action.VOLUME_WRITE, Action.SNAPSHOT_WRITE}
_EVERYBODY = frozenset({Action.OPEN, Action.USER_SELF, Action.TEMPLATE_READ})

ROLES: dict[Role, frozenset[Action]] = {
    Role.READ: _READ,
    Role.WRITE: _WRITE,
    Role.OWNER: _WRITE | {Action.SANDBOX_DESTROY, Action.SANDBOX_ADMIN, Action.PROJECT_MANAGE},
}
"""What a role allows inside its project."""

MAKER: frozenset[Action] = frozenset({Action.SANDBOX_DESTROY})
"""What a member with the role `write` may do in addition with a sandbox that this user has made."""

SIGNED_IN: frozenset[Action] = _EVERYBODY | {Action.TEMPLATE_BUILD, Action.USER_MANAGE}
"""What every user may do anywhere."""

ADMIN: frozenset[Action] = frozenset(Action)
"""What an administrator may do, in every project and in none."""

SCOPES: dict[Scope, frozenset[Action]] = {
    # Only a key with the scope `admin` can make keys, so no key can make a stronger one.
    Scope.READ: _READ | _EVERYBODY,
    Scope.WRITE: _WRITE | _EVERYBODY | {Action.SANDBOX_DESTROY, Action.SANDBOX_ADMIN, Action.TEMPLATE_BUILD},
    Scope.ADMIN: frozenset(Action),
}

On = Literal["nothing", "project", "projects", "sandbox", "volume", "snapshot"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route needs: an action, and on what.

    `on` is resolved from the path, or for `project` from the query where the path has none (without it,
    the personal project), before the body is read. `projects`: a list over all projects that the actor sees.
    `body` is the most bytes that a request may carry; None: it is streamed, without a limit.
    """

    action: Action
    on: On = "nothing"
    body: int | None = 1 << 20
    audit: bool | None = None
    """Whether success is audited; None: when the method changes something."""
