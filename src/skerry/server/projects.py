"""Which project a request means."""

from __future__ import annotations

from skerry.server.access import Subject, is_admin
from skerry.server.identity import Actor
from skerry.server.store import Project, Store


def visible(store: Store, actor: Actor) -> list[Project]:
    """Those whose things the actor sees, the personal one first."""
    if actor.token is not None:
        found = store.projects.get(actor.token.project_id)
        return [] if found is None else [found]
    if actor.user is None:
        return []
    mine = [project for project, _ in store.projects.of_user(actor.user.id)]
    if is_admin(actor):
        mine += [project for project in store.projects.all() if project not in mine]
    bound = None if actor.key is None else actor.key.project_id
    return mine if bound is None else [project for project in mine if project.id == bound]


def locate(store: Store, actor: Actor, asked: str | None) -> tuple[Subject, Project | None]:
    """The project of that id, or of that name among the actor's; without one the personal, or the key's own."""
    mine = visible(store, actor)
    if asked is None:
        found = mine[0] if mine else None
    elif asked.startswith("pj-"):
        found = store.projects.get(asked)
    else:
        found = next((project for project in mine if project.name == asked), None)
    return Subject(on="project", asked=asked or "", project=found, exists=found is not None), found


def choices(store: Store, actor: Actor, within: str | None) -> list[Project | None]:
    """Where a name is looked for; None stands for what belongs to no project."""
    if within is not None:
        found = locate(store, actor, within)[1]
        return [] if found is None else [found]
    return [*visible(store, actor), *([None] if is_admin(actor) else [])]
