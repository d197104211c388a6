"""Projects and their members."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from pydantic import Field

from skerry.core import OBEYED, Conflict, NotFound, Snapshots, Volumes
from skerry.server.access.check import is_admin
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Role
from skerry.server.context import Context, Ctx, InProject, Me, Who, note_made
from skerry.server.store import Project, User
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer, Body

router = Routes("projects")
UserPath = Annotated[str, Path(description="The user, by id or name.")]

ProjectName = Annotated[str, Field(min_length=1, max_length=100, pattern=rf"^[^{OBEYED}\u0009\u000a/]+$")]


class ProjectModel(Answer):
    id: str
    """Its id."""
    name: str
    """Its name."""
    personal: bool
    """Whether it is a personal project, which exists as long as its user."""
    role: Role | None
    """Your role; null for an administrator who is not a member."""
    created_at: float
    """When it was made."""


class ProjectList(Answer):
    items: list[ProjectModel]
    """The projects."""
    cursor: str | None = None
    """Always null."""


class NameProject(Body):
    name: ProjectName
    """The project's name."""


class MemberModel(Answer):
    user: str
    """The user's name."""
    user_id: str
    """The user's id."""
    role: Role
    """What the user may do in the project."""


class MemberList(Answer):
    items: list[MemberModel]
    """The members."""
    cursor: str | None = None
    """Always null."""


class SetMember(Body):
    """What a member may do."""

    role: Annotated[Role, Field(strict=False)]
    """What the user may do in the project."""


def _model(context: Context, who: Actor, project: Project) -> ProjectModel:
    return ProjectModel(
        id=project.id,
        name=project.name,
        personal=project.personal_of is not None,
        role=context.role(who, project),
        created_at=project.created_at,
    )


@router.get("/v1/projects")
async def list_(context: Ctx, who: Who) -> ProjectList:
    """List the projects you see, your own first."""
    return ProjectList(items=[_model(context, who, project) for project in context.projects(who)])


@router.post("/v1/projects", status_code=201, raises=("CONFLICT",))
async def create(request: Request, context: Ctx, who: Who, me: Me, body: NameProject) -> ProjectModel:
    """Make a project that you own."""
    if any(project.name == body.name for project in context.store.accounts.projects_of(me.id)):
        raise Conflict(f"you have a project {body.name!r} already")
    made = await context.store.projects.add(body.name, me.id)
    note_made(request, "project", made.id, made.name)
    return _model(context, who, made)


@router.get("/v1/projects/{project}")
async def show(context: Ctx, who: Who, project: InProject) -> ProjectModel:
    """Get a project."""
    return _model(context, who, project)


@router.patch("/v1/projects/{project}")
async def rename(context: Ctx, who: Who, project: InProject, body: NameProject) -> ProjectModel:
    """Rename a project."""
    await context.store.projects.rename(project.id, body.name)
    return _model(context, who, context.store.accounts.project(project.id) or project)


@router.delete("/v1/projects/{project}", status_code=204)
async def remove(context: Ctx, project: InProject) -> None:
    """Remove a project that has no sandboxes, snapshots or volumes."""
    if project.personal_of is not None:
        raise Conflict("a personal project is removed with its user")
    held = []
    if any(isinstance(provider, Snapshots) for provider in context.providers.values()):
        held += [f"snapshot {info.id}" for _, info in await context.holdings.list_snapshots([project])]
    if any(isinstance(provider, Volumes) for provider in context.providers.values()):
        held += [f"volume {info.name}" for _, info in await context.holdings.list_volumes([project])]
    if held:
        raise Conflict(f"the project still has {', '.join(held[:5])}", hint="remove them first")
    await context.store.projects.remove(project.id)


@router.get("/v1/projects/{project}/members")
async def members(context: Ctx, project: InProject) -> MemberList:
    """List the members of a project, by name."""
    found = context.store.accounts.members(project.id)
    return MemberList(items=[MemberModel(user=item.user_name, user_id=item.user_id, role=item.role) for item in found])


@router.put("/v1/projects/{project}/members/{user}")
async def set_member(context: Ctx, who: Who, project: InProject, user: UserPath, body: SetMember) -> MemberModel:
    """Make a user a member, or change the role of a member.

    Give the user's id, which they can tell you, or the name if you share a project or are an administrator.
    """
    found = _known(context, who, user)
    if project.personal_of == found.id and body.role is not Role.OWNER:
        raise Conflict("a user stays the owner of their personal project")
    await context.store.projects.set_member(project.id, found.id, body.role)
    return MemberModel(user=found.name, user_id=found.id, role=body.role)


def _known(context: Context, who: Actor, asked: str) -> User:
    """The user with that id, or with that name if the actor may know of that user. Raises NotFound.

    A stranger's name gets the same error as a name that nobody has: otherwise everybody could find out who has an
    account, and make people members who have not told them their id.
    """
    if is_admin(who):
        return context.store.accounts.find_user(asked)
    hint = "ask them for their id, which `skerry whoami` shows them"
    missing = NotFound(f"you share no project with a user {asked[:100]!r}", hint=hint)
    try:
        found = context.store.accounts.find_user(asked)
    except NotFound:
        raise missing from None
    if found.id == asked:
        return found
    if who.user is None or not context.store.accounts.share_project(who.user.id, found.id):
        raise missing
    return found


@router.delete("/v1/projects/{project}/members/{user}", status_code=204)
async def remove_member(context: Ctx, project: InProject, user: UserPath) -> None:
    """Remove a member. A project keeps at least one owner; a personal project keeps its user."""
    found = next(
        (item for item in context.store.accounts.members(project.id) if user in (item.user_id, item.user_name)), None
    )
    if found is None:
        raise NotFound(f"there is no member {user[:100]!r}")
    await _leave(context, project, found.user_id)


@router.delete("/v1/projects/{project}/membership", status_code=204)
async def leave(context: Ctx, project: InProject, me: Me) -> None:
    """Leave a project."""
    await _leave(context, project, me.id)


async def _leave(context: Context, project: Project, user_id: str) -> None:
    if project.personal_of == user_id:
        raise Conflict("you cannot leave your personal project")
    await context.store.projects.set_member(project.id, user_id, None)
