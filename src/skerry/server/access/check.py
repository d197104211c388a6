"""The one check of the permission tables, and the subject of a check."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from skerry.core import (
    NotFound,
    PermissionDenied,
    SandboxNotFound,
    SkerryError,
    SnapshotNotFound,
    Unauthenticated,
    VolumeNotFound,
    looks_like_id,
)
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import ADMIN, MAKER, ROLES, SCOPES, SIGNED_IN, Action, On, Role, Scope
from skerry.server.store import Accounts, AuditEntry, Project, Store, User

log = logging.getLogger("skerry.server.audit")

_MISSING: dict[On, type[SkerryError]] = {
    "sandbox": SandboxNotFound,
    "snapshot": SnapshotNotFound,
    "volume": VolumeNotFound,
    "project": NotFound,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The thing that a request is about."""

    on: On = "nothing"
    asked: str = ""
    """As the request names it."""
    project: Project | None = None
    sandbox_id: str | None = None
    exists: bool = True
    parts: tuple[str, ...] = ()
    """For the audit: what else the request names, as `user mira`."""

    @property
    def target(self) -> str:
        """For the audit: all that it names."""
        which = self.sandbox_id or (self.project.id if self.on == "project" and self.project else self.asked)
        thing = () if self.on == "nothing" else (f"{self.on} {which}"[:200],)
        return ", ".join((*thing, *self.parts))[:300]

    def missing(self) -> SkerryError:
        """The error for a thing that does not exist; the same for a thing of others."""
        named = self.on in ("sandbox", "snapshot", "volume") and not looks_like_id(self.asked)
        hint = "a name means a thing in your own project, or in the project that SKERRY_PROJECT or ?project= names"
        return _MISSING.get(self.on, NotFound)(
            f"there is no {self.on} {self.asked[:200]!r}", hint=hint if named else None
        )


def grants(
    accounts: Accounts, actor: Actor, project: Project | None, sandbox_id: str | None = None
) -> frozenset[Action] | None:
    """What `actor` may do in a project, or with what belongs to none; None if the actor is not a member."""
    if actor.token is not None:
        if sandbox_id is None or sandbox_id != actor.token.sandbox_id:
            return None
        return ROLES[actor.token.role] & {Action.SANDBOX_READ, Action.SANDBOX_WRITE}
    if actor.user is None:
        return None
    bound = None if actor.key is None else actor.key.project_id
    if bound is not None and (project is None or project.id != bound):
        return None
    role = None if project is None else accounts.role(project.id, actor.user.id)
    if is_admin(actor):
        allowed: frozenset[Action] | None = ADMIN
    else:
        allowed = None if role is None else ROLES[role]
        if allowed is not None and role is Role.WRITE and _made(accounts, actor.user, sandbox_id):
            allowed = allowed | MAKER
    return None if allowed is None else allowed & scope_of(actor)


def _made(accounts: Accounts, user: User, sandbox_id: str | None) -> bool:
    noted = None if sandbox_id is None else accounts.owned("sandbox", sandbox_id)
    return noted is not None and noted.made_by == user.id


def scope_of(actor: Actor) -> frozenset[Action]:
    """The most that the actor's credential allows."""
    if actor.key is None:
        return ADMIN
    found = frozenset().union(*(SCOPES[scope] for scope in actor.key.scopes))
    # A key of one project sets no password and makes no key: with those it would be its user everywhere. It also builds
    # nothing that the sandboxes of others begin with.
    return found if actor.key.project_id is None else found - {Action.USER_MANAGE, Action.TEMPLATE_BUILD}


def is_admin(actor: Actor) -> bool:
    """A key acts as its administrator only with the scope `admin`, and only if it is not bound to a project."""
    return (
        actor.user is not None
        and actor.user.admin
        and (actor.key is None or (Scope.ADMIN in actor.key.scopes and actor.key.project_id is None))
    )


def granted(accounts: Accounts, actor: Actor, subject: Subject) -> frozenset[Action] | SkerryError:
    """What the actor may do with this, or why nothing of it: not signed in, or not there."""
    if not actor.signed_in:
        why = f": {actor.refused}" if actor.refused else ""
        return Unauthenticated(
            f"sign in first{why}",
            hint="give api_key=, or set SKERRY_API_KEY; `skerry key create` makes a key",
        )
    if subject.on in ("nothing", "projects"):
        everywhere = ADMIN if is_admin(actor) else SIGNED_IN
        if subject.on == "projects":
            everywhere = everywhere | frozenset().union(*ROLES.values())
        return frozenset() if actor.token is not None else everywhere & scope_of(actor)
    found = grants(accounts, actor, subject.project, subject.sandbox_id) if subject.exists else None
    return subject.missing() if found is None else found


def allowed(accounts: Accounts, actor: Actor, action: Action, subject: Subject) -> SkerryError | None:
    """Why it is not allowed; None: it is."""
    return None if action is Action.OPEN else _refusal(actor, action, granted(accounts, actor, subject))


def _refusal(actor: Actor, action: Action, may: frozenset[Action] | SkerryError) -> SkerryError | None:
    if isinstance(may, SkerryError):
        return may
    if action in may:
        return None
    return PermissionDenied(f"{actor.name} may not do this ({action})", hint="ask an owner of the project")


async def authorize(
    store: Store, actor: Actor, action: Action, subject: Subject, *, operation: str
) -> frozenset[Action]:
    """All that the actor may do with this, `action` among it.

    Raises Unauthenticated, the error for a thing that is not there, or PermissionDenied; each denial is audited.
    """
    if action is Action.OPEN:
        return frozenset()
    may = granted(store.accounts, actor, subject)
    refusal = _refusal(actor, action, may)
    if refusal is not None:
        await record(store, actor, action, subject, operation=operation, outcome=refusal.code)
        raise refusal
    assert not isinstance(may, SkerryError)
    return may


async def record(
    store: Store, actor: Actor, action: Action, subject: Subject, *, operation: str, outcome: str = "ok"
) -> None:
    """Record what was done or refused."""
    if not actor.signed_in and outcome != "ok" and store.audit.nobodies.take(actor.id):
        return  # a client without an account cannot fill the disk; the log has each request
    entry = AuditEntry(
        time=time.time(),
        actor=actor.name,
        credential=actor.credential,
        action=action,
        operation=operation,
        target=subject.target,
        project_id=None if subject.project is None else subject.project.id,
        outcome=outcome,
        address=actor.address,
        request_id=actor.request_id,
    )
    await write_down(store, [entry])


async def write_down(store: Store, entries: Sequence[AuditEntry]) -> None:
    """Write to the audit; an entry that cannot be written there goes to the log."""
    if not entries:
        return
    try:
        await store.audit.add(entries)
    except SkerryError as error:
        # The outcome does not change. The log may still have room where the disk of the audit is full.
        for entry in entries:
            log.error("audit: %s", str(error), extra=dataclasses.asdict(entry))
