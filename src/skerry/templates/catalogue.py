"""The templates by name: those that come with Skerry, their versions and aliases."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path

from skerry.core import IMAGES, InvalidArgument, TemplateNotFound, Unsupported, nearest
from skerry.templates.aptsources import os_release
from skerry.templates.model import NAME, Template
from skerry.templates.parse import FILE_NAME, load

HOST = Template(name="host", base="host", description="This machine's own system files, read-only.")
_DIRECTORY = Path(__file__).parent / "builtin"
_NODE = ("24.19.0", "22.23.3", "20.20.2", "18.20.8")
_PACKAGED = {
    "python": {"bookworm": "3.11", "noble": "3.12", "trixie": "3.13"},
    "pytorch": {"bookworm": "1.13.1", "trixie": "2.6.0"},
}
"""The versions that releases of Debian or Ubuntu have."""
_WITH_VERSION = re.compile(r"(?P<name>.*?[a-z])[-_]?v?(?P<version>\d+(\.\d+)*(\.[x*])?)")
_ID = re.compile(r"[0-9a-f]{16}")
_LANGUAGES = {
    "javascript": "node",
    "bash": "debian",
    "shell": "debian",
    "go": "full-stack-dev",
    "golang": "full-stack-dev",
    "rust": "full-stack-dev",
}
"""The templates of languages that are not called like them."""
_GPU = {"pytorch-gpu": "pytorch", "python-gpu": "python", "gpu-ml": "pytorch"}
"""Names of templates that need a GPU, and what is nearest without one."""
_IMAGES = ("debian", "node", "python")
"""Those of which images of the same name have more versions."""


def builtin() -> list[Template]:
    """All templates that come with Skerry, each in its default version."""
    return [HOST, *(_default(name) for name in _names())]


def versions(template: Template) -> tuple[str, ...]:
    """The versions a template is offered in, its default first."""
    return tuple(dict.fromkeys((template.version, *(_NODE if template.name == "node" else ()))))


def resolve(reference: str, more: Iterable[Template] = ()) -> Template:
    """The template that a name, a name with a version (`node:20`, `node20`, `node-v20.x`), an alias (`nodejs`) or a
    language (`go`) stands for.

    `more` are templates beside the built-in ones. Raises TemplateNotFound, which names the nearest, and Unsupported for
    one that needs a GPU.
    """
    if not isinstance(reference, str):
        raise InvalidArgument(f"a template is named by text, not by {reference!r}")
    known = {template.name: template for template in (*more, *builtin())}
    aliases = {alias: template for template in reversed(known.values()) for alias in template.aliases}
    table = {name: known[title] for name, title in _LANGUAGES.items()} | aliases | known
    name, version = _split(reference, {*table, *_GPU})
    if name in _GPU and name not in table:
        message = f"the template {name!r} needs a GPU, and no provider has one"
        raise Unsupported(message, option="template", hint=f"{_GPU[name]!r} computes on the CPU")
    if name not in table:
        hint = (
            nearest(re.sub(r"\d[\d.]*$", "", name), table)
            or f"there are {', '.join(sorted(known))}, and what was built here"
        )
        if version and NAME.fullmatch(name):
            hint += f"; an image of that name is docker://{reference}"
        raise TemplateNotFound(f"there is no template {reference!r}", hint=hint)
    return _in_version(table[name], version or "latest")


def knows(name: str) -> bool:
    """Whether a name is that of one that comes with Skerry, in whatever version."""
    taken = names()
    return _split(name, taken)[0] in taken


def names() -> set[str]:
    """All names, aliases and languages that stand for one that comes with Skerry."""
    return {name for template in builtin() for name in (template.name, *template.aliases)} | _LANGUAGES.keys()


def _split(reference: str, known: Container[str]) -> tuple[str, str]:
    """Name and version; a number behind a name that is not known as a whole is its version."""
    name, colon, version = reference.partition(":")
    if name not in known and not colon and (match := _WITH_VERSION.fullmatch(name)) and match["name"] in known:
        return match["name"], match["version"]
    return name, version


def check_free(name: str, what: str = "name") -> None:
    """Raises InvalidArgument for a name that means something already, or would with a number behind it: what one name
    stands for is the same everywhere, whatever is built."""
    taken = names()
    match = _WITH_VERSION.fullmatch(name)
    if name == IMAGES:  # which a Template refuses by itself
        why = "is what images are called"
    elif _ID.fullmatch(name):
        why = "looks like the id of a template"
    elif name in taken:
        why = "is the name of a template or a language that comes with Skerry"
    elif name in _GPU:
        why = "stands for a template that needs a GPU"
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
    except (TemplateNotFound, Unsupported):
        pass
    check_free(template.name)
    for alias in template.aliases:
        check_free(alias, "aliases")
    return template


def _in_version(template: Template, wanted: str) -> Template:
    offered = versions(template)
    plain = re.sub(r"\.[xX*]$", "", wanted.removeprefix("v"))
    if wanted == "latest":
        return template
    for version in offered:
        if version == plain or version.startswith(f"{plain}."):
            return dataclasses.replace(template, version=version)
    by_distance = sorted(offered, key=lambda version: _distance(version, plain))
    hint = f"there is {', '.join(f'{template.name}:{version}' for version in by_distance)}"
    if template.name in _IMAGES:
        hint += f"; other versions are images, such as docker://{template.name}:{plain}"
    raise TemplateNotFound(f"there is no version {wanted!r} of the template {template.name!r}", hint=hint)


def _distance(version: str, other: str) -> list[int]:
    """How far two versions are from each other, the first number first."""
    one, two = ([int(digits) for digits in re.findall(r"\d+", text)] for text in (version, other))
    return [abs(mine - theirs) for mine, theirs in zip(one, two, strict=False)]


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
    packaged = _PACKAGED.get(name, {}).get(system.get("VERSION_CODENAME", ""), template.version)
    return dataclasses.replace(template, version=packaged)
