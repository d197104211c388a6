"""Which server to talk to, as whom: given, from the environment, or from what `skerry login` stored."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from skerry._model import Model
from skerry.core import InvalidArgument, Unauthenticated, dump_json, from_plain, load_json, login_file, replace_file


class Login(Model):
    """A server and the key for it. `key` is not in its repr."""

    url: str
    key: str | None = None
    project: str | None = None
    """The project that new things belong to; None: the user's own."""
    ca_file: str | None = None
    """Certificates to trust beside the system's: for a server with its own CA."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for what no header can carry: the error of a failed attempt would show the key."""
        for what, text in (("key", self.key), ("project", self.project)):
            if text is not None and not (text.isascii() and text.isprintable()):
                hint = "copy it again, without line ends" if what == "key" else "name it by its id"
                raise InvalidArgument(f"the {what} contains characters that cannot be sent", hint=hint)

    def __repr__(self) -> str:
        return f"Login(url={self.url!r}, key={'…' if self.key else None}, project={self.project!r})"


def check_url(url: str) -> str:
    """`http://host:port` or `https://…`, without a slash at its end. Raises InvalidArgument."""
    hint = "write it like http://127.0.0.1:7411"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{url!r} is not the URL of a server: {error}", hint=hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgument(f"{url!r} is not the URL of a server", hint=hint)
    if parts.username or parts.password:
        raise InvalidArgument("a server's URL has no user and password in it", hint="give the key as SKERRY_API_KEY")
    return url.rstrip("/")


def save_login(login: Login, path: Path | None = None) -> Path:
    """Store the login for later commands, readable by its owner alone. Returns the path."""
    path = path or login_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, dump_json(login), flush=True, several=True)
    return path


def load_login(path: Path | None = None) -> Login | None:
    """The stored login; None: there is none.

    Raises InvalidArgument for a file that others can read or that is damaged.
    """
    path = path or login_file()
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidArgument(f"{path} can be read by others", hint=f"chmod 600 {path}")
            data = file.read(1 << 20)
    except FileNotFoundError:
        return None
    return from_plain(Login, load_json(data), str(path), strict=False)


def forget_login(path: Path | None = None) -> bool:
    """Remove the stored login. Returns whether there was one."""
    try:
        (path or login_file()).unlink()
    except FileNotFoundError:
        return False
    return True


def find_login(url: str | None = None, key: str | None = None, project: str | None = None) -> Login:
    """What the caller gives, then SKERRY_URL, SKERRY_API_KEY, SKERRY_PROJECT and SKERRY_CA_FILE, then what is stored.

    A stored key is for the stored server alone: another server never gets it.

    Raises Unauthenticated where no server is known, InvalidArgument.
    """
    stored = load_login()
    chosen = url or os.environ.get("SKERRY_URL") or (stored.url if stored else None)
    if chosen is None:
        raise Unauthenticated("no server is known", hint="run `skerry login`, or set SKERRY_URL and SKERRY_API_KEY")
    login = Login(url=check_url(chosen))
    if stored is not None and check_url(stored.url) == login.url:
        login = stored
    return replace(
        login,
        url=check_url(chosen),
        key=key or os.environ.get("SKERRY_API_KEY") or login.key,
        project=project or os.environ.get("SKERRY_PROJECT") or login.project,
        ca_file=os.environ.get("SKERRY_CA_FILE") or login.ca_file,
    )
