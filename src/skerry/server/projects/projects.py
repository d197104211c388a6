"""Finds the project that a request means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from skerry.core import Conflict, is_project_id
from skerry.server.access.check import Subject, is_admin
from skerry.server.access.identity import Actor
from skerry.server.store import Accounts, Project

T = TypeVar("T")


def visible(accounts: Accounts, actor: Actor) -> list[Project]:
    """The projects that the actor sees, the personal one first."""
    return [project for tier in _tiers(accounts, actor) for project in tier]


def _tiers(accounts: Accounts, actor: Actor) -> list[list[Project]]:
    """Where a project's name is looked up, in this order: the personal project, those the actor made, those the actor
    is a member of, and for an administrator all others.

    Other users choose the names of projects they share, so inside a tier no project comes before another.
    """
    if actor.token is not None:
        found = accounts.project(actor.token.project_id)
        return [] if found is None else [[found]]
    if actor.user is None:
        return []
    mine = accounts.projects_of(actor.user.id)
    own = [project for project in mine if project.personal_of == actor.user.id]
    made = [project for project in mine if project not in own and project.made_by == actor.user.id]
    shared = [project for project in mine if project not in own and project not in made]
    others = [project for project in accounts.projects() if project not in mine] if is_admin(actor) else []
    bound = None if actor.key is None else actor.key.project_id
    return [[project for project in tier if bound in (None, project.id)] for tier in (own, made, shared, others)]


def locate(accounts: Accounts, actor: Actor, asked: str | None) -> tuple[Subject, Project | None]:
    """The project with that id, or with that name among the actor's; by default the personal one, or the key's own.

    Raises Conflict for a name that several projects have.
    """
    found = None
    if asked is None:
        found = next(iter(visible(accounts, actor)), None)
    elif is_project_id(asked):
        found = accounts.project(asked)
    else:
        for tier in _tiers(accounts, actor):
            if found := only({project.id: project for project in tier if project.name == asked}, asked):
                break
    return Subject(on="project", asked=asked or "", project=found, exists=found is not None), found


def choices(accounts: Accounts, actor: Actor, within: str | None) -> list[Project | None]:
    """Where the name of a thing is looked up, in this order.

    That is the project `within`; without it, the personal project or the key's own, and then, for an administrator,
    what was made on the machine itself, for which None stands. It is never a project that others share with the actor:
    they choose its names, and would get requests that are meant for something else.
    """
    found = locate(accounts, actor, within)[1]
    mine: list[Project | None] = [] if found is None else [found]
    return [*mine, None] if within is None and is_admin(actor) else mine


def only(found: Mapping[str, T], asked: str) -> T | None:
    """The only thing that has a name; `found` is by id. Raises Conflict for several: the server does not guess."""
    if len(found) > 1:
        raise Conflict(
            f"you see several projects {asked!r}", hint=f"give one of these ids: {', '.join(sorted(found)[:5])}"
        )
    return next(iter(found.values()), None)
