"""Users, for administrators."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import Path, Request
from pydantic import Field, SecretStr

from skerry.server.access.secrets import digest
from skerry.server.context import Ctx, note_made
from skerry.server.store import User
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer, Body

router = Routes("users", raises=("CONFLICT",))
UserPath = Annotated[str, Path(description="The user, by id or name.")]

LINK_LIFETIME = 900.0
LONGEST_LINK = 7 * 86400.0

UserName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._@-]{0,63}$", examples=["mira"])]


class UserModel(Answer):
    id: str
    """The user's id."""
    name: str
    """The name for signing in."""
    admin: bool
    """Whether the user is an administrator."""
    disabled: bool
    """Whether the user is kept out."""
    has_password: bool
    """Whether the user can sign in with a password."""
    created_at: float
    """When the user was made."""


class UserList(Answer):
    items: list[UserModel]
    """The users."""
    cursor: str | None = None
    """Always null."""


class CreateUser(Body):
    name: UserName
    """The name for signing in."""
    password: SecretStr | None = None
    """Without a password, the user signs in by a link and can then set one."""
    admin: bool = False
    """Whether the user is an administrator."""


class ChangeUser(Body):
    password: SecretStr | None = None
    """A new password; null: as it is."""
    admin: bool | None = None
    """Whether the user is an administrator; null: as it is."""
    disabled: bool | None = None
    """Whether the user is kept out; null: as it is."""


class CreateLink(Body):
    lifetime: Annotated[float, Field(gt=0, le=LONGEST_LINK)] = LINK_LIFETIME
    """Seconds for which the link works."""


class Link(Answer):
    url: str
    """Opened in a browser, it signs the user in once."""
    expires_at: float
    """When it ends if nobody uses it."""


def model(user: User) -> UserModel:
    return UserModel(
        id=user.id,
        name=user.name,
        admin=user.admin,
        disabled=user.disabled,
        has_password=user.has_password,
        created_at=user.created_at,
    )


@router.get("/v1/users")
async def list_(context: Ctx) -> UserList:
    """List all users, by name."""
    return UserList(items=[model(user) for user in context.store.accounts.users()])


@router.post("/v1/users", status_code=201)
async def create(request: Request, context: Ctx, body: CreateUser) -> UserModel:
    """Make a user, with a personal project."""
    stored = None if body.password is None else await context.passwords.hash(body.password.get_secret_value())
    made = await context.store.users.add(body.name, password=stored, admin=body.admin)
    note_made(request, "user", made.id, made.name)
    return model(made)


@router.get("/v1/users/{user}")
async def show(context: Ctx, user: UserPath) -> UserModel:
    """Get a user, by id or name."""
    return model(context.store.accounts.find_user(user))


@router.patch("/v1/users/{user}")
async def change(context: Ctx, user: UserPath, body: ChangeUser) -> UserModel:
    """Change the given fields. A new password or disabling ends all sessions; a disabled user's keys do not work."""
    found = context.store.accounts.find_user(user)
    stored = None if body.password is None else await context.passwords.hash(body.password.get_secret_value())
    await context.store.users.change(found.id, password=stored, admin=body.admin, disabled=body.disabled)
    return model(context.store.accounts.find_user(found.id))


@router.delete("/v1/users/{user}", status_code=204)
async def remove(context: Ctx, user: UserPath) -> None:
    """Remove a user with keys, sessions and memberships. What is in the personal project stays, for administrators."""
    await context.store.users.remove(context.store.accounts.find_user(user).id)


@router.post("/v1/users/{user}/link", status_code=201)
async def link(context: Ctx, user: UserPath, body: CreateLink) -> Link:
    """Make a link that signs this user in, once."""
    found, text = context.store.accounts.find_user(user), secrets.token_urlsafe(32)
    await context.store.users.add_link(found.id, digest(text), lifetime=body.lifetime)
    return Link(url=f"{context.settings.url}/sign-in#{text}", expires_at=time.time() + body.lifetime)
