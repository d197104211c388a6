"""Who makes a request, by session cookie, API key, sandbox token or ticket; and whether a browser may make it."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from skerry.core import DiskFull, InvalidArgument, PermissionDenied
from skerry.server.access.rate_limits import party
from skerry.server.access.secrets import digest
from skerry.server.access.tickets import Tickets
from skerry.server.settings import Settings
from skerry.server.store import Accounts, ApiKey, SandboxToken, Store, User

T = TypeVar("T")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "x-skerry"
"""A header that a page of another origin cannot send without permission; its value does not matter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who a request is from. Without `user` and `token`: an unknown client."""

    user: User | None = None
    token: SandboxToken | None = None
    key: ApiKey | None = None
    session: bytes | None = None
    """The stored hash of the session, if the credential is a session."""
    credential: str = ""
    """For the audit: `session`, `key:<id>`, `token:<id>`, with `ticket` before it if it came by one."""
    address: str = ""
    request_id: str = ""
    refused: str = ""
    """Why the given credentials are not valid."""

    @property
    def signed_in(self) -> bool:
        return self.user is not None or self.token is not None

    @property
    def name(self) -> str:
        if self.user is not None:
            return f"user:{self.user.name}"
        return "anonymous" if self.token is None else f"token:{self.token.id}"

    @property
    def id(self) -> str:
        """The key by which limits are counted."""
        if self.user is not None:
            return self.user.id
        return party(self.address) if self.token is None else f"token:{self.token.id}"


def cookie_name(settings: Settings) -> str:
    """The cookie's name, with the prefix `__Host-` where browsers accept it: over TLS."""
    return "__Host-skerry" if settings.url.startswith("https:") else "skerry"


async def identify(
    connection: HTTPConnection, store: Store, settings: Settings, tickets: Tickets, request_id: str
) -> Actor:
    """Raises PermissionDenied for a request that a page of another origin may have caused."""
    address = connection.client.host if connection.client else ""
    nobody = Actor(address=address, request_id=request_id)
    header = connection.headers.get("authorization")
    if connection.scope["type"] == "websocket":
        check_origin(connection, settings)
        if (ticket := connection.query_params.get("ticket")) is not None:
            found = tickets.use(ticket, connection.url.path)
            if found is None or not still_good(store.accounts, found):
                return Actor(address=address, request_id=request_id, refused="the ticket is used, expired or unknown")
            return Actor(
                user=None if found.user is None else _fresh(store.accounts, found.user),
                token=found.token,
                key=found.key,
                session=found.session,
                credential=f"ticket {found.credential}",
                address=address,
                request_id=request_id,
            )
    if header is not None:
        return await _bearer(header, store, address, request_id)
    cookie = connection.cookies.get(cookie_name(settings))
    if connection.scope["type"] == "http" and connection.scope["method"] not in SAFE:
        check_origin(connection, settings)
        if cookie is not None:
            _check_same_site(connection)
    if cookie is None:
        return nobody
    hash = digest(cookie)
    session = await _known(store, lambda: store.accounts.session(hash))
    if session is None:
        return Actor(address=address, request_id=request_id, refused="the session has ended")
    user, expires_at = session
    until = time.time() + settings.session_lifetime
    if until - expires_at > settings.session_lifetime / 10:
        with contextlib.suppress(DiskFull):
            await store.users.extend_session(hash, until)
    return Actor(user=user, session=hash, credential="session", address=address, request_id=request_id)


async def _bearer(header: str, store: Store, address: str, request_id: str) -> Actor:
    scheme, _, text = header.partition(" ")
    text = text.strip()
    accounts = store.accounts
    found: ApiKey | SandboxToken | None = None
    if scheme.lower() == "bearer":
        found = await _known(store, lambda: _credential(accounts, text))
    if isinstance(found, ApiKey):
        user = accounts.user(found.user_id)
        if user is not None and not user.disabled:
            with contextlib.suppress(DiskFull):
                await store.keys.note_use(found)
            return Actor(user=user, key=found, credential=f"key:{found.id}", address=address, request_id=request_id)
    elif found is not None:
        return Actor(token=found, credential=f"token:{found.id}", address=address, request_id=request_id)
    return Actor(address=address, request_id=request_id, refused="the key is revoked, expired or unknown")


def _credential(accounts: Accounts, text: str) -> ApiKey | SandboxToken | None:
    return accounts.check_key(text) or accounts.check_token(text)


async def _known(store: Store, look: Callable[[], T | None]) -> T | None:
    """What a look into the accounts finds; another process may have made it a moment ago."""
    found = look()
    return look() if found is None and await store.refresh() else found


def _fresh(accounts: Accounts, user: User) -> User | None:
    """The user as of now; None for a user who has been disabled since."""
    found = accounts.user(user.id)
    return None if found is None or found.disabled else found


def still_good(accounts: Accounts, actor: Actor) -> bool:
    """For streams and long requests: whether their credential is still valid.

    It is not for a user who has been an administrator and no longer is: what was opened as one ends.
    """
    if actor.token is not None:
        token = accounts.token(actor.token.id)
        return token is not None and _lasts(token.expires_at)
    user = None if actor.user is None else _fresh(accounts, actor.user)
    if user is None or (actor.user is not None and actor.user.admin and not user.admin):
        return False
    if actor.key is not None:
        key = accounts.key(actor.key.id)
        return key is not None and _lasts(key.expires_at)
    return actor.session is None or accounts.session(actor.session) is not None


def _lasts(expires_at: float | None) -> bool:
    return expires_at is None or expires_at > time.time()


def check_host(connection: HTTPConnection, settings: Settings) -> None:
    """Refuse names that somebody points at this machine (DNS rebinding). Raises InvalidArgument."""
    given = connection.headers.getlist("host")
    name = _hostname(given[0]) if len(given) == 1 else None
    if name is None or not (name in settings.hosts() or _is_address(name)):
        raise InvalidArgument(
            f"this server is not called {name or 'that'!r}", hint="add the name to allowed_hosts in server.toml"
        )


def check_origin(connection: HTTPConnection, settings: Settings) -> None:
    """Raises PermissionDenied for a page of another origin; programs send no origin."""
    origin = connection.headers.get("origin")
    if origin is None:
        return
    scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme, connection.url.scheme)
    ours = {f"{scheme}://{connection.headers.get('host', '')}"}
    if settings.public_url:
        parts = urlsplit(settings.public_url)
        ours.add(f"{parts.scheme}://{parts.netloc}")
    if origin not in ours:
        raise PermissionDenied(f"pages of {origin[:200]} may not do this", hint="open it from the server's own pages")


def _check_same_site(connection: HTTPConnection) -> None:
    """A request that carries a cookie and changes something must come from this server's page.

    Raises PermissionDenied.
    """
    site = connection.headers.get("sec-fetch-site")
    if site in ("same-origin", "none") or (site is None and connection.headers.get("origin") is not None):
        allowed = True  # the origin itself has been checked
    else:
        allowed = site is None and CSRF_HEADER in connection.headers
    if not allowed:
        hint = f"programs use an API key, or send the header {CSRF_HEADER}"
        raise PermissionDenied("this request may come from another site's page", hint=hint)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    """Literal addresses are safe: no name server gives them out, so nobody can point one at this server."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
