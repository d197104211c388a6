"""API keys, tokens of sandboxes, and tickets for WebSockets."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import Path, Request
from pydantic import Field

from skerry.core import Conflict, NotFound, PermissionDenied
from skerry.server.access.identity import Actor
from skerry.server.access.permissions import Action, Role, Scope
from skerry.server.access.tickets import LIFETIME
from skerry.server.context import Ctx, Me, Sandbox, Who, note_made
from skerry.server.projects.projects import locate
from skerry.server.store import ApiKey, SandboxToken
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer, Body, Title

router = Routes("keys")
TokenPath = Annotated[str, Path(description="The id of the token.")]
KeyPath = Annotated[str, Path(description="The id of the key.")]

Lifetime = Annotated[
    float | None, Field(gt=0, le=10 * 365 * 86400, description="Lifetime in seconds; without it, for ever.")
]


class KeyModel(Answer):
    id: str
    """Its id."""
    name: str
    """Its name, for people."""
    scopes: list[Scope]
    """What it allows, within its user's rights."""
    project: str | None
    """The id of the project that it is bound to; null: none."""
    created_at: float
    """When it was made."""
    expires_at: float | None
    """When it ends; null: never."""
    last_used_at: float | None
    """When it was last used, to within a minute; null: never."""


class KeyList(Answer):
    items: list[KeyModel]
    """The keys."""
    cursor: str | None = None
    """Always null."""


class CreateKey(Body):
    name: Title = "key"
    """Its name, for people."""
    scopes: Annotated[list[Annotated[Scope, Field(strict=False)]], Field(min_length=1)] = Field(
        default=[Scope.READ, Scope.WRITE]
    )
    """What it allows, within your rights."""
    project: Annotated[str | None, Field(max_length=200)] = None
    """The project that the key is bound to, by id or name."""
    lifetime: Lifetime = None


class NewKey(KeyModel):
    key: str
    """The secret text, which nobody can look up later."""


class TokenModel(Answer):
    id: str
    """Its id."""
    role: Literal["read", "write"]
    """Whether it may only read."""
    created_by: str
    """Who made it."""
    created_at: float
    """When it was made."""
    expires_at: float | None
    """When it ends; null: never."""


class TokenList(Answer):
    items: list[TokenModel]
    """The tokens."""
    cursor: str | None = None
    """Always null."""


class CreateToken(Body):
    role: Literal["read", "write"] = "write"
    """Whether it may only read."""
    lifetime: Lifetime = None


class NewToken(TokenModel):
    token: str
    """The secret text, which nobody can look up later."""


class CreateTicket(Body):
    path: Annotated[str, Field(pattern=r"^/v1/", max_length=2000)]
    """The WebSocket's path, without the query."""


class Ticket(Answer):
    ticket: str
    """The text for `?ticket=`."""
    expires_at: float
    """When it ends if nobody uses it."""


def _key(key: ApiKey) -> KeyModel:
    return KeyModel(
        id=key.id,
        name=key.name,
        scopes=sorted(key.scopes),
        project=key.project_id,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
    )


def _token(token: SandboxToken) -> TokenModel:
    return TokenModel(
        id=token.id,
        role="read" if token.role is Role.READ else "write",
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )


@router.get("/v1/keys")
async def list_keys(context: Ctx, me: Me) -> KeyList:
    """List your keys, oldest first."""
    return KeyList(items=[_key(key) for key in context.store.accounts.keys_of(me.id)])


@router.post("/v1/keys", status_code=201, raises=("NOT_FOUND",))
async def create_key(request: Request, context: Ctx, who: Who, me: Me, body: CreateKey) -> NewKey:
    """Make a key. A key made with a key has no more scopes than that key, and does not outlive it."""
    project_id = None
    if body.project is not None:
        subject, project = locate(context.store.accounts, who, body.project)
        if project is None or not context.allows(who, Action.PROJECT_READ, subject):
            raise subject.missing()
        project_id = project.id
    if who.key is not None and not set(body.scopes) <= who.key.scopes:
        raise PermissionDenied("a key cannot make a key that may do more", hint="sign in, and make the key there")
    key, text = await context.store.keys.add(
        me.id,
        body.name,
        scopes=frozenset(body.scopes),
        project_id=project_id,
        expires_at=_until(who, body.lifetime),
    )
    note_made(request, "key", key.id, key.name)
    return NewKey(**_key(key).model_dump(), key=text)


@router.delete("/v1/keys/{key}", status_code=204)
async def revoke_key(context: Ctx, me: Me, key: KeyPath) -> None:
    """Revoke a key, at once."""
    found = context.store.accounts.key(key)
    if found is None or found.user_id != me.id:
        raise NotFound(f"there is no key {key[:100]!r}")
    await context.store.keys.remove(found.id)


@router.get("/v1/sandboxes/{sandbox}/tokens")
async def list_tokens(context: Ctx, sandbox: Sandbox) -> TokenList:
    """List the tokens of a sandbox, oldest first."""
    return TokenList(items=[_token(token) for token in context.store.accounts.tokens_of(sandbox.id)])


@router.post("/v1/sandboxes/{sandbox}/tokens", status_code=201)
async def create_token(request: Request, context: Ctx, who: Who, sandbox: Sandbox, body: CreateToken) -> NewToken:
    """Make a token for code inside the sandbox: valid for this sandbox and nothing else."""
    if sandbox.project is None:
        raise Conflict("a sandbox that belongs to no project has no tokens")
    token, text = await context.store.keys.add_token(
        sandbox.id, sandbox.project.id, Role(body.role), created_by=who.name, expires_at=_until(who, body.lifetime)
    )
    note_made(request, "token", token.id)
    return NewToken(**_token(token).model_dump(), token=text)


@router.delete("/v1/sandboxes/{sandbox}/tokens/{token}", status_code=204)
async def revoke_token(context: Ctx, sandbox: Sandbox, token: TokenPath) -> None:
    """Revoke a token, at once."""
    if not await context.store.keys.remove_token(sandbox.id, token):
        raise NotFound(f"there is no token {token[:100]!r}")


@router.post("/v1/tickets", status_code=201)
async def create_ticket(context: Ctx, who: Who, body: CreateTicket) -> Ticket:
    """Make a ticket that opens one WebSocket, as `?ticket=`, where a browser cannot send a key.

    It is valid once, for some seconds.
    """
    return Ticket(ticket=context.tickets.issue(who, body.path), expires_at=time.time() + LIFETIME)


def _until(who: Actor, lifetime: float | None) -> float | None:
    """When a new key or token ends: at the latest with the key that makes it."""
    ends = (None if lifetime is None else time.time() + lifetime, None if who.key is None else who.key.expires_at)
    return min((end for end in ends if end is not None), default=None)
