"""Signing in and out, and who is signed in."""

from __future__ import annotations

import secrets
from typing import Annotated

import anyio
from fastapi import Response
from pydantic import Field, SecretStr
from starlette.responses import HTMLResponse

from skerry.core import InvalidArgument, RateLimited, Unauthenticated
from skerry.server.access import sign_in_page
from skerry.server.access.check import Subject, is_admin
from skerry.server.access.identity import Actor, cookie_name
from skerry.server.access.permissions import Action, Role, Scope
from skerry.server.access.rate_limits import party
from skerry.server.access.secrets import digest
from skerry.server.context import Context, Ctx, Me, Who
from skerry.server.projects.projects import visible
from skerry.server.store import User
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer, Body

router = Routes("sessions")

SLOWEST = 2.0
"""The longest wait, in seconds, of an attempt to sign in while others try the same name from many addresses."""


class SignIn(Body):
    """A name and a password, or the text of a link that signs in once."""

    name: Annotated[str | None, Field(max_length=64)] = None
    """The user's name."""
    password: SecretStr | None = None
    """The user's password."""
    link: SecretStr | None = None
    """The text of the link, after the #."""


class ProjectRole(Answer):
    id: str
    """The project's id."""
    name: str
    """The project's name."""
    personal: bool
    """Whether it is your personal project."""
    role: Role | None
    """Your role; null for an administrator who is not a member."""


class SessionModel(Answer):
    user: str
    """Your name."""
    user_id: str
    """Your id."""
    admin: bool
    """Whether this credential may act as an administrator."""
    credential: str
    """`session`, or `key:ID`."""
    scopes: list[Scope]
    """What the credential allows."""
    projects: list[ProjectRole]
    """The projects that you see, your own first."""


class NewPassword(Body):
    old: SecretStr | None = None
    """The present password; null: there is none."""
    new: SecretStr
    """The new password."""


def describe(context: Context, actor: Actor, user: User) -> SessionModel:
    return SessionModel(
        user=user.name,
        user_id=user.id,
        admin=is_admin(actor),
        credential=actor.credential,
        scopes=sorted(Scope if actor.key is None else actor.key.scopes),
        projects=[
            ProjectRole(
                id=project.id,
                name=project.name,
                personal=project.personal_of == user.id,
                role=context.store.accounts.role(project.id, user.id),
            )
            for project in visible(context.store.accounts, actor)
        ],
    )


@router.get("/sign-in", response_class=HTMLResponse, include_in_schema=False)
async def page() -> HTMLResponse:
    """Open a one-time link: its secret is after the #, so no server and no proxy ever logs it."""
    return HTMLResponse(sign_in_page.HTML, headers={"content-security-policy": sign_in_page.POLICY})


@router.post("/v1/session", raises=("UNAUTHENTICATED", "PROVIDER_UNAVAILABLE", "DISK_FULL"))
async def sign_in(context: Ctx, who: Who, body: SignIn, response: Response) -> SessionModel:
    """Sign in with a name and a password or with a one-time link; the answer sets the session's cookie."""
    if wait := context.sign_ins.take(party(who.address)):
        raise RateLimited("too many attempts to sign in from this address", retry_after=wait)
    if body.name is not None and (wait := context.names_tried.take(body.name)):
        await anyio.sleep(min(wait, SLOWEST))
    user = await _authenticate(context, body)
    if user is None:
        # A name that nobody has is not recorded: it may be a password in the wrong field.
        known = body.name is not None and await context.store.users.password(body.name) is not None
        subject = Subject(parts=(f"user {body.name}" if known else "link" if body.name is None else "nobody",))
        await context.audit(who, Action.OPEN, subject, operation="sign in", outcome="UNAUTHENTICATED")
        raise Unauthenticated("the name, the password or the link is wrong", hint="a link works once")
    text = secrets.token_urlsafe(32)
    lifetime = context.settings.session_lifetime
    await context.store.users.add_session(user.id, digest(text), lifetime=lifetime, address=who.address)
    _set_cookie(context, response, text, lifetime)
    actor = Actor(user=user, session=digest(text), credential="session", address=who.address, request_id=who.request_id)
    await context.audit(actor, Action.OPEN, Subject(), operation="sign in")
    return describe(context, actor, user)


def _set_cookie(context: Context, response: Response, text: str, lifetime: float) -> None:
    """A lifetime of 0 removes the cookie. Browsers accept neither for `__Host-` cookies without `secure`."""
    secure = context.settings.url.startswith("https:")
    name = cookie_name(context.settings)
    response.set_cookie(name, text, max_age=round(lifetime), httponly=True, secure=secure, samesite="lax")


async def _authenticate(context: Context, body: SignIn) -> User | None:
    if body.link is not None and body.name is None and body.password is None:
        return await context.store.users.use_link(digest(body.link.get_secret_value()))
    if body.name is None or body.password is None or body.link is not None:
        raise InvalidArgument("give a name and a password, or a link")
    found = await context.store.users.password(body.name)
    stored, user = found if found is not None else (None, None)
    if not await context.passwords.verify(stored, body.password.get_secret_value()):
        return None
    return None if user is None or user.disabled else user


@router.get("/v1/session")
async def whoami(context: Ctx, who: Who, me: Me) -> SessionModel:
    """Get who you are, by the credential of this request."""
    return describe(context, who, me)


@router.delete("/v1/session", status_code=204)
async def sign_out(context: Ctx, who: Who, response: Response) -> None:
    """End this session. A request with a key has no session: nothing happens."""
    if who.session is not None:
        await context.store.users.end_session(who.session)
        _set_cookie(context, response, "", 0)


@router.delete("/v1/sessions", status_code=204)
async def sign_out_everywhere(context: Ctx, me: Me) -> None:
    """End all your sessions, on all devices. API keys stay."""
    await context.store.users.end_sessions(me.id)


@router.put("/v1/password", status_code=204)
async def change_password(context: Ctx, who: Who, me: Me, body: NewPassword) -> None:
    """Set your password; the old one is needed if there is one. All sessions end."""
    if wait := context.sign_ins.take(f"password:{me.id}"):
        raise RateLimited("too many attempts to change the password", retry_after=wait)
    stored, _ = await context.store.users.password(me.name) or (None, me)
    old = "" if body.old is None else body.old.get_secret_value()
    if stored is not None and not await context.passwords.verify(stored, old):
        raise Unauthenticated("the old password is wrong")
    await context.store.users.change(me.id, password=await context.passwords.hash(body.new.get_secret_value()))
