"""A template as data: what a sandbox is made from, checked when it is made."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from skerry._model import Model
from skerry.core import IMAGES, RESERVED_HINT, InvalidArgument, Resources, check_shown, looks_like_id

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,62}")
USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?")
_NOT_KEPT = ("/proc", "/sys", "/dev", "/run", "/tmp", "/.skerry")
"""What a sandbox gets again at each start: a file that a template puts there would not be seen."""


class Packages(Model):
    """What is installed: by apt (Debian), into the virtual environment /opt/python, and as global npm packages."""

    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("apt", "pip", "npm"):
            for name in _texts(getattr(self, kind), f"packages.{kind}"):
                if name.startswith("-") or not name.isprintable() or (kind == "apt" and not _APT.fullmatch(name)):
                    raise InvalidArgument(f"packages.{kind}: {name!r} is not a package")


class File(Model, kw_only=False):
    """A file. Without `owner` it belongs to `user` below the working directory and /home, else to root."""

    content: str | bytes
    mode: int = 0o644
    owner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.content, str | bytes):
            raise InvalidArgument(f"the content of a file must be text or bytes, not {type(self.content).__name__}")
        if type(self.mode) is not int or not 0 <= self.mode <= 0o7777:
            raise InvalidArgument(f"{self.mode!r} is not the mode of a file", hint="write it like 0o755")
        if self.owner not in (None, "user", "root"):
            raise InvalidArgument(f"a file belongs to 'user' or 'root', not to {self.owner!r}")

    @property
    def data(self) -> bytes:
        return self.content.encode() if isinstance(self.content, str) else self.content


class Command(Model, kw_only=False):
    """A line or a whole script for `sh`; run as the template's user unless it names one. `name` is for logs."""

    run: str
    user: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        run: object = self.run
        if not isinstance(run, str) or not run.strip() or "\0" in run:
            raise InvalidArgument(f"a script must be text for a shell, not {run!r}")
        if self.user is not None:
            _check(self.user, USER_NAME, "the user of a script")

    @property
    def script(self) -> str:
        """What `sh -c` gets: it stops at the first line that fails."""
        return f"set -e\n{self.run}"


class Scripts(Model):
    """`build` runs when the template is built, with a network; `post_create` once in each new sandbox, before `create`
    returns; each of `post_start` is started in the background whenever the sandbox starts."""

    build: tuple[Command, ...] = ()
    post_create: tuple[Command, ...] = ()
    post_start: tuple[Command, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("build", "post_create", "post_start"):
            commands = getattr(self, kind)
            if not isinstance(commands, tuple) or any(not isinstance(command, Command) for command in commands):
                raise InvalidArgument(f"scripts.{kind} must be a tuple of Command")


class Template(Model):
    """What sandboxes are made from. Raises InvalidArgument for a field that makes no sense.

    `base` is another template with or without a version, `host`, `image:` with a reference, or None: a new root from
    this machine's own package sources. The first of `ports` is the one to preview.
    """

    name: str
    version: str = "1"
    description: str = ""
    base: str | None = "debian"
    packages: Packages = field(default_factory=Packages)
    files: Mapping[str, File] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    user: str = "user"
    ports: tuple[int, ...] = ()
    scripts: Scripts = field(default_factory=Scripts)
    resources: Resources = field(default_factory=Resources)
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        _check(self.version, VERSION, "version")
        _check(self.user, USER_NAME, "user")
        check_base(self.base, self.name)
        if not isinstance(self.description, str):
            raise InvalidArgument(f"description must be text, not {self.description!r}")
        check_shown(self.description, "description")
        for alias in _texts(self.aliases, "aliases"):
            check_name(alias, "aliases")
            check_base(self.base, alias)
        if self.base == "host" and self.packages.apt:
            hint = "use the base 'debian'"
            raise InvalidArgument("packages.apt: the base 'host' has this machine's /usr, read-only", hint=hint)
        _check_path(self.workdir, "workdir")
        check_env(self.env)
        check_ports(self.ports)
        for path in self.files:
            _check_path(posixpath.join(self.workdir, path), f"files: {path!r}")
        places = {self.place(path): path for path in self.files}
        for place, path in places.items():
            while (place := posixpath.dirname(place)) != "/":
                if place in places:
                    raise InvalidArgument(f"files: {path!r} lies below {places[place]!r}, which is a file")

    @property
    def reference(self) -> str:
        """The name with its version."""
        return f"{self.name}:{self.version}"

    def place(self, path: str) -> str:
        """Where a file of `files` goes: relative paths are below the working directory."""
        return posixpath.join(self.workdir, path)

    def owner(self, path: str) -> str:
        """Who owns the file of that path."""
        place = self.place(path)
        mine = any(place.startswith(f"{top.rstrip('/')}/") for top in (self.workdir, "/home", "/workspace"))
        return self.files[path].owner or ("user" if mine else "root")


def check_name(name: object, what: str = "name") -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name) or looks_like_id(name):
        hint = f"use up to 63 of a-z 0-9 . _ - and begin with a letter or digit, but not with {RESERVED_HINT}"
        raise InvalidArgument(f"{what}: {name!r} is not a name for a template", hint=hint)
    if name == IMAGES:
        hint = "base: {image: …}" if what == "base" else "choose another"
        raise InvalidArgument(f"{what}: {name!r} is what images are called", hint=hint)
    return name


def check_base(base: object, name: str) -> None:
    if base is None or (isinstance(base, str) and re.fullmatch(r"image:[^\s-]\S*", base)):
        return
    if not isinstance(base, str):
        raise InvalidArgument(f"base must be the name of a template, not {base!r}")
    template, colon, version = base.partition(":")
    check_name(template, "base")
    if colon:
        _check(version, VERSION, "base: version")
    if template == name != "host":  # which has nothing below it
        raise InvalidArgument(f"base: the template {name!r} cannot be its own base")


def check_env(env: object) -> None:
    if not isinstance(env, Mapping):
        raise InvalidArgument(f"env must be a mapping of text to text, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise InvalidArgument(f"env: {name!r} is not the name of a variable")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgument(f"env: {name} must be text, not {value!r}")


def check_ports(ports: object) -> None:
    if not isinstance(ports, tuple):
        raise InvalidArgument(f"ports must be a tuple of numbers, not {type(ports).__name__}")
    for port in ports:
        if type(port) is not int or not 1 <= port <= 65535:
            raise InvalidArgument(f"ports: {port!r} is not a port", hint="give a whole number from 1 to 65535")
    if len(set(ports)) < len(ports):
        raise InvalidArgument("ports: one of them is there twice")


def _check_path(path: object, what: str) -> None:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or posixpath.normpath(path) != path:
        hint = "give a path without . and ..; relative paths of files are below the working directory"
        raise InvalidArgument(f"{what} must lead to one clear place, not to {path!r}", hint=hint)
    if path == "/" or any(path == top or path.startswith(f"{top}/") for top in _NOT_KEPT):
        raise InvalidArgument(f"{what}: {path} is not a place that a template can fill")


def _check(value: object, pattern: re.Pattern[str], what: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidArgument(f"{what}: {value!r} is not valid")


def _texts(values: object, what: str) -> Iterable[str]:
    if not isinstance(values, tuple) or not all(isinstance(value, str) and value for value in values):
        raise InvalidArgument(f"{what} must be a tuple of texts, not {values!r}")
    return values
