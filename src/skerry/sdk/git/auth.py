"""Credentials for one run of git: in the environment of that process, for one server, and nowhere else."""

from __future__ import annotations

from dataclasses import field
from urllib.parse import unquote, urlsplit, urlunsplit

from skerry._model import Model
from skerry.core import InvalidArgument

TOKEN_USER = "x-access-token"
"""The user that goes with a token alone; hosting services take any."""
_HELPER = '!f() { test "$1" != get || printf "username=%s\\npassword=%s\\n" "$GIT_AUTH_USER" "$GIT_AUTH_SECRET"; }; f'


class Credentials(Model, kw_only=False):
    """What git needs to sign in: options of the command, which hold no secret, and the environment, which does."""

    server: str
    """Scheme, host and port: nobody else is sent them, no redirect and no submodule."""
    env: dict[str, str] = field(repr=False)

    @property
    def options(self) -> list[str]:
        # The empty helper forgets those of the repository and of the user, which might store what they are told.
        # A background process would keep the environment after git has ended, so there is none.
        settings = (
            "credential.helper=",
            f"credential.{self.server}.helper={_HELPER}",
            "gc.auto=0",
            "maintenance.auto=false",
            "core.fsmonitor=false",
        )
        return [part for setting in settings for part in ("-c", setting)]


def split_url(url: object, username: str | None, password: str | None) -> tuple[str, Credentials | None]:
    """The URL without a user and a password, and these if there are any.

    Raises InvalidArgument for a URL that could be an option, and for credentials that it has no use for.
    """
    if not isinstance(url, str) or not url or url.startswith("-") or any(ord(letter) < 32 for letter in url):
        raise InvalidArgument(f"{_redacted(url)} is not the URL of a repository")
    if not url.startswith(("http://", "https://")):
        if username is not None or password is not None:
            raise InvalidArgument(f"a user and a password are for http and https, not for {_redacted(url)}")
        return url, None
    parts = urlsplit(url)
    user_info, at, server = parts.netloc.rpartition("@")
    if not server or set(server) & set("=\\\"' "):
        raise InvalidArgument(f"{_redacted(url)} names no server")
    clean = urlunsplit(parts._replace(netloc=server))
    if at:
        if username is not None or password is not None:
            raise InvalidArgument("the URL has a user in it already", hint="give credentials once")
        name, _, secret = user_info.partition(":")
        username, password = unquote(name), unquote(secret)
    return clean, credentials(clean, username, password)


def credentials(url: str, username: str | None, password: str | None) -> Credentials | None:
    """For the server of a URL; None where neither is given. Raises InvalidArgument."""
    if username is None and password is None:
        return None
    for value in (username, password):
        # A line break would let a value say more than it is.
        if value is not None and set(_text(value)) & set("\n\r\0"):
            raise InvalidArgument("a user and a password are text in one line")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise InvalidArgument("a user and a password are for http and https, which the remote does not use")
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return Credentials(server, {"GIT_AUTH_USER": username or TOKEN_USER, "GIT_AUTH_SECRET": password or ""})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"a user and a password are text, not {type(value).__name__}")
    return value


def _redacted(url: object) -> str:
    """For a message: a URL that cannot be used may hold a password all the same."""
    if not isinstance(url, str):
        return f"a {type(url).__name__}"
    scheme, separator, rest = url.partition("://")
    return repr(f"{scheme}://…@{rest.rpartition('@')[2]}" if separator and "@" in rest else url)
