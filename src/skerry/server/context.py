"""Everything a route needs, made once for a server, and the annotations by which handlers get it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from skerry.core import Provider, Unauthenticated, registry
from skerry.server.access.check import Subject, allowed, is_admin, record
from skerry.server.access.identity import Actor
from skerry.server.access.passwords import Passwords
from skerry.server.access.permissions import Action, Role
from skerry.server.access.rate_limits import Buckets, Counts
from skerry.server.access.tickets import Tickets
from skerry.server.jobs.event_collector import Hub
from skerry.server.projects.handles import process_handles, terminal_handles
from skerry.server.projects.leases import Leases
from skerry.server.projects.projects import locate, visible
from skerry.server.projects.providers import Owned, Providers
from skerry.server.projects.sandboxes import Directory, Located
from skerry.server.projects.slots import Slots
from skerry.server.projects.snapshots_volumes import Holdings, LocatedSnapshot, LocatedVolume
from skerry.server.run.metrics import Metrics
from skerry.server.settings import Settings
from skerry.server.store import Project, Store, User

MOST_WIRES = 64
"""Wire connections of one actor to one sandbox: its agent takes 256 in all, and one reader leaves some to others."""
MANY_ADDRESSES = 20
"""How many addresses may each try one name at the full rate, before all attempts for that name are slowed down."""


class Context:
    """The parts of a running server. `stopping` is set when it has to end: streams then end themselves."""

    def __init__(self, settings: Settings, provider: Provider | None = None) -> None:
        self.settings = settings
        self.providers = Providers([registry.provider(settings.provider) if provider is None else provider])
        self.store = Store.open(settings.database, provider=self.providers.default.name)
        self.sandboxes = Directory(self.providers, self.store)
        self.holdings = Holdings(self.providers, self.store)
        self.leases = Leases(self.store, self.sandboxes)
        self.tickets = Tickets()
        self.metrics = Metrics()
        self.requests = Buckets(settings.rate, settings.burst)
        self.under_way = {
            "http": Counts(settings.max_requests),
            "websocket": Counts(settings.max_connections_per_address),
        }
        """Requests and sockets of each actor."""
        self.sign_ins = Buckets(settings.sign_in_rate, settings.sign_in_burst)
        # Anybody can try any name: attempts for one name from many addresses are slowed down, and never refused.
        self.names_tried = Buckets(settings.sign_in_rate, settings.sign_in_burst * MANY_ADDRESSES)
        self.events = Hub(self.store, self.sandboxes)
        self.passwords = Passwords()
        self.slots = Slots()
        self.processes, self.terminals = process_handles(), terminal_handles()
        self.wires = Counts(MOST_WIRES)
        """Wire connections of each actor to one sandbox."""
        self.stopping = asyncio.Event()

    def provider_of(self, item: Owned) -> Provider:
        """The provider that has a sandbox, a snapshot or a volume. Raises ProviderUnavailable."""
        return self.providers.of(item)

    def allows(self, actor: Actor, action: Action, subject: Subject) -> bool:
        """The same check as for routes, inside a stream; the caller writes the audit."""
        return allowed(self.store.accounts, actor, action, subject) is None

    async def audit(
        self, actor: Actor, action: Action, subject: Subject, *, operation: str, outcome: str = "ok"
    ) -> None:
        await record(self.store, actor, action, subject, operation=operation, outcome=outcome)

    def projects(self, actor: Actor, asked: str | None = None) -> list[Project]:
        """The projects that a list covers: all that the actor sees, or the one asked for. Raises NotFound."""
        if asked is None:
            return visible(self.store.accounts, actor)
        subject, project = locate(self.store.accounts, actor, asked)
        if project is None or not self.allows(actor, Action.PROJECT_READ, subject):
            raise subject.missing()
        return [project]

    def sees_unclaimed(self, actor: Actor, asked: str | None = None) -> bool:
        """Whether a list also shows things that belong to no project."""
        return asked is None and is_admin(actor)

    def role(self, actor: Actor, project: Project) -> Role | None:
        return None if actor.user is None else self.store.accounts.role(project.id, actor.user.id)


def note_made(connection: HTTPConnection, kind: str, id: str, name: str | None = None) -> None:
    """Note what a request has made, for the audit."""
    made = f"{kind} {id}" if name is None else f"{kind} {id} ({name})"
    connection.scope["state"].setdefault("made", []).append(made[:200])


def _state(connection: HTTPConnection, name: str) -> Any:
    return connection.scope["state"][name]


# These are async: FastAPI would run plain functions in threads, a hop each.


async def _context(connection: HTTPConnection) -> Context:
    found: Context = connection.app.state.context
    return found


async def _actor(connection: HTTPConnection) -> Actor:
    found: Actor = _state(connection, "actor")
    return found


async def _subject(connection: HTTPConnection) -> Subject:
    found: Subject = _state(connection, "subject")
    return found


async def _granted(connection: HTTPConnection) -> frozenset[Action]:
    found: frozenset[Action] = _state(connection, "may")
    return found


async def _value(connection: HTTPConnection) -> Any:
    return _state(connection, "located")


async def _user(connection: HTTPConnection) -> User:
    user = (await _actor(connection)).user
    if user is None:
        raise Unauthenticated("this needs a user")
    return user


Ctx = Annotated[Context, Depends(_context)]
Who = Annotated[Actor, Depends(_actor)]
Me = Annotated[User, Depends(_user)]
About = Annotated[Subject, Depends(_subject)]
May = Annotated[frozenset[Action], Depends(_granted)]
"""What the actor may do with what the request is about: asked of the table once."""
Sandbox = Annotated[Located, Depends(_value)]
Snapshot = Annotated[LocatedSnapshot, Depends(_value)]
Volume = Annotated[LocatedVolume, Depends(_value)]
InProject = Annotated[Project, Depends(_value)]
