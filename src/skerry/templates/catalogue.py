"""The templates by name: those that come with Skerry, their versions and aliases."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from skerry.core import IMAGES, InvalidArgument, TemplateNotFound, nearest
from skerry.templates.aptsources import os_release
from skerry.templates.model import Template
from skerry.templates.parse import FILE_NAME, load

HOST = Template(name="host", base="host", description="This machine's own system files, read-only.")
_DIRECTORY = Path(__file__).parent / "builtin"
_NODE = ("24.19.0", "22.23.3", "20.20.2")
_PYTHON = {"bookworm": "3.11", "noble": "3.12", "trixie": "3.13"}
"""The Python of a release of Debian or Ubuntu."""
_WITH_VERSION = re.compile(r"(?P<name>.*?[a-z])[-_]?v?(?P<version>\d+(\.\d+)*)")
_ID = re.compile(r"[0-9a-f]{16}")
LANGUAGES = {
    "python": "python",
    "javascript": "node",
    "typescript": "node-ts",
    "bash": "debian",
    "shell": "debian",
}
"""The template for a language."""


def builtin() -> list[Template]:
    """All templates that come with Skerry, each in its default version."""
    return [HOST, *(_default(name) for name in _names())]


def versions(template: Template) -> tuple[str, ...]:
    """The versions a template is offered in, its default first."""
    return tuple(dict.fromkeys((template.version, *(_NODE if template.name == "node" else ()))))


def resolve(reference: str, more: Iterable[Template] = ()) -> Template:
    """The template that a name, a name with a version (`node:20`) or an alias (`nodejs`, `nodejs20`) stands for.

    `more` are templates beside the built-in ones. Raises TemplateNotFound, which names the nearest.
    """
    if not isinstance(reference, str):
        raise InvalidArgument(f"a template is named by text, not by {reference!r}")
    known = {template.name: template for template in (*more, *builtin())}
    aliases = {alias: template for template in reversed(known.values()) for alias in template.aliases}
    table = aliases | known
    name, colon, version = reference.partition(":")
    if name not in table and not colon and (match := _WITH_VERSION.fullmatch(name)) and match["name"] in table:
        name, version = match["name"], match["version"]
    if name not in table:
        hint = nearest(name, table) or f"there are {', '.join(sorted(known))}"
        raise TemplateNotFound(f"there is no template {name!r}", hint=hint)
    return _in_version(table[name], version or "latest")


def knows(name: str) -> bool:
    """Whether a name is that of one that comes with Skerry, in whatever version."""
    title = name.partition(":")[0]
    match = _WITH_VERSION.fullmatch(title)
    return title in names() or (match is not None and match["name"] in names())


def names() -> set[str]:
    """The names and aliases of those that come with Skerry."""
    return {name for template in builtin() for name in (template.name, *template.aliases)}


def check_free(name: str, what: str = "name") -> None:
    """Raises InvalidArgument for a name that means something already, or would with a number behind it: what one name
    stands for is the same everywhere, whatever is built."""
    taken = names() | LANGUAGES.keys()
    match = _WITH_VERSION.fullmatch(name)
    if name == IMAGES:  # which a Template refuses by itself
        why = "is what images are called"
    elif _ID.fullmatch(name):
        why = "looks like the id of a template"
    elif name in taken:
        why = "is the name of a template or a language that comes with Skerry"
    elif match is not None and match["name"] in taken:
        why = f"is the template {match['name']!r}, which comes with Skerry, in the version {match['version']}"
    else:
        return
    raise InvalidArgument(f"{what}: {name!r} {why}", hint=f"choose another, such as {f'my-{name}'[:63]!r}")


def check_own(template: Template) -> Template:
    """The template, if it is one that comes with Skerry or has names that are free. Raises InvalidArgument."""
    try:
        if template in (HOST, resolve(template.reference)):
            return template
    except TemplateNotFound:
        pass
    check_free(template.name)
    for alias in template.aliases:
        check_free(alias, "aliases")
    return template


def _in_version(template: Template, wanted: str) -> Template:
    offered = versions(template)
    if wanted == "latest":
        return template
    for version in offered:
        if version == wanted or version.startswith(f"{wanted}."):
            return dataclasses.replace(template, version=version)
    shown = ", ".join(f"{template.name}:{version}" for version in offered)
    raise TemplateNotFound(
        f"there is no version {wanted!r} of the template {template.name!r}", hint=f"there is {shown}"
    )


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in _DIRECTORY.glob(f"*/{FILE_NAME}")))


@cache
def _default(name: str) -> Template:
    template = load(_DIRECTORY / name)
    # What comes from this machine's package sources has the version that those have.
    system = os_release()
    if template.base is None:
        return dataclasses.replace(template, version=system.get("VERSION_ID") or template.version)
    if name == "python":
        suite = system.get("VERSION_CODENAME", "")
        return dataclasses.replace(template, version=_PYTHON.get(suite, template.version))
    return template
