"""The server's settings: flags override the environment, which overrides `server.toml` and built-in values."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from skerry.core import InvalidArgument, config

ENVIRONMENT = "SKERRY_SERVER_"
FILE = "server.toml"
DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each field is a key of `server.toml`, an environment variable SKERRY_SERVER_<FIELD>, and sometimes a flag."""

    home: Path = field(default_factory=config.home)
    """SKERRY_HOME; the server's own data is in its directory `server`."""
    host: str = "127.0.0.1"
    port: int = 7411
    provider: str = "local"
    public_url: str = ""
    """The address that users open, if a proxy is in front."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a Host header may have, besides those of `host` and `public_url`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose X-Forwarded-For and X-Forwarded-Proto the server trusts."""
    tls: bool = False
    """Serve HTTPS, with `tls_cert` and `tls_key` or with a certificate of a local authority made here."""
    tls_cert: str = ""
    tls_key: str = ""
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    shutdown_timeout: float = 10.0
    """How long running requests may take when the server shuts down."""
    session_lifetime: float = 14 * DAY
    """How long an unused session stays valid."""
    rate: float = 200.0
    """Requests per second that one user, key or address may make on average; `burst` at once."""
    burst: int = 1000
    sign_in_rate: float = 0.2
    """Sign-ins per second from one address; `sign_in_burst` at once. One name from many addresses is slowed down."""
    sign_in_burst: int = 10
    max_requests: int = 256
    """Requests that one user, key or address may have running at once."""
    max_connections: int = 4096
    max_connections_per_address: int = 1024
    """Connections from one address; `trusted_proxies` stand for many clients and are not counted."""
    header_timeout: float = 15.0
    """How long a client may take to send the head of a request."""
    events_kept: float = 30 * DAY
    audit_kept: float = 365 * DAY
    webhook_attempts: int = 8
    webhook_private: bool = False
    """Whether webhooks may send to addresses of this machine and its private networks."""
    backups_kept: int = 7

    @property
    def directory(self) -> Path:
        """Where the server keeps its database, backups and certificates."""
        return self.home / "server"

    @property
    def database(self) -> Path:
        return self.directory / "skerry.db"

    @property
    def scheme(self) -> str:
        return "https" if self.tls or self.tls_cert else "http"

    @property
    def url(self) -> str:
        """Where users reach this server."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = outward(self.host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def hosts(self) -> frozenset[str]:
        """The names, without ports, that a Host header may have."""
        names = {"localhost", "127.0.0.1", "::1", self.host, outward(self.host), *self.allowed_hosts}
        if self.public_url:
            names.add(urlsplit(self.public_url).hostname or "")
        return frozenset(name.lower() for name in names if name not in ("", "0.0.0.0", "::"))


@cache
def outward(host: str) -> str:
    """Where clients reach a server that listens on `host`: for every address, that of this machine's own route out."""
    every = {"0.0.0.0": (socket.AF_INET, "198.51.100.1", "127.0.0.1"), "::": (socket.AF_INET6, "2001:db8::1", "::1")}
    if host not in every:
        return host
    family, somewhere, loopback = every[host]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((somewhere, 9))  # chooses the address, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return loopback  # no network


def load_settings(
    *, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and the origin of each that is not built in. Raises InvalidArgument."""
    environ = os.environ if environ is None else environ
    home = config.home() if home is None else home
    values: dict[str, Any] = {"home": home}
    sources: dict[str, str] = {}
    file = home / FILE
    for source, given in (
        (str(file), _read(file)),
        ("environment", _from_environment(environ)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        for name, value in given.items():
            values[name] = _check(name, value, source)
            sources[name] = source
    settings = Settings(**values)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidArgument("tls_cert and tls_key belong together: give both")
    if settings.public_url:
        _check_public(settings.public_url)
    return settings, sources


def _check_public(url: str) -> None:
    """Raises InvalidArgument for a URL that cannot be a server's address in a browser."""
    try:
        parts = urlsplit(url)
        where = (parts.scheme in ("http", "https") and parts.hostname, parts.port)
    except ValueError:
        where = (None, None)
    if not where[0] or "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidArgument(f"the setting public_url cannot be {url!r}", hint="write it like https://skerry.example")


_ABOVE_ZERO = {
    "header_timeout",
    "session_lifetime",
    "max_requests",
    "max_connections",
    "max_connections_per_address",
    "webhook_attempts",
}
"""Nothing works if one of these is 0; for the others 0 means none."""
_HINTS = {name: hint for name, hint in get_type_hints(Settings).items() if name != "home"}


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix(ENVIRONMENT).lower(): text for name, text in environ.items() if name.startswith(ENVIRONMENT)
    }


def _check(name: str, value: object, source: str) -> object:
    """`value` as the type of the field; text is parsed. Raises InvalidArgument."""
    kind = _HINTS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, _HINTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(_HINTS)}"
        raise InvalidArgument(f"there is no setting {name!r} ({source})", hint=hint)
    wrong = InvalidArgument(f"the setting {name} cannot be {value!r} ({source})")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            wrong.hint = f"one of {', '.join(get_args(kind))}"
            raise wrong
        return value
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise wrong
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if isinstance(value, str):
            value = words.get(value.lower())
        if not isinstance(value, bool):
            raise wrong
        return value
    if kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    return _number(name, kind, value, wrong)


def _number(name: str, kind: Any, value: object, wrong: InvalidArgument) -> int | float:
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if isinstance(value, bool) or not 0 <= number < math.inf or (kind is int and number != float(str(value))):
        raise wrong
    if name in _ABOVE_ZERO and not number:
        raise wrong
    return number  # type: ignore[no-any-return]


def shown_settings(settings: Settings, sources: Mapping[str, str]) -> list[tuple[str, object, str]]:
    """Name, value and origin of every setting, for `skerry config show`."""
    return [
        (item.name, getattr(settings, item.name), sources.get(item.name, "built in"))
        for item in dataclasses.fields(settings)
    ]
