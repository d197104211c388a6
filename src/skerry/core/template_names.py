"""Finds the built template that a text stands for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from skerry.core.errors import TemplateNotFound
from skerry.core.models import BuiltTemplate

IMAGES = "image"
"""What comes before the hash in the names of images; no template has this name, and alone it does not name an image."""


def resolve_built(which: str, built: Iterable[BuiltTemplate], *, others: Iterable[str] = ()) -> BuiltTemplate:
    """Find the built template that a text names. An id or a reference names exactly one.

    A name with a version means that version, or the newest that begins with it; a name alone means the newest. Names
    come before aliases. A template that was replaced is found by its id alone.

    Raises TemplateNotFound, which names the nearest of these and of `others`.
    """
    known = sorted(built, key=lambda info: info.created_at, reverse=True)
    name, at, template_id = which.partition("@")
    for info in known:
        if info.id == template_id if at else info.id == which:
            return info
    known = [info for info in known if not info.superseded]
    title, colon, version = name.partition(":")
    found = [info for info in known if title == stem(info)] or [info for info in known if title in info.aliases]
    if which == IMAGES and found:
        hint = f"say which: {', '.join(info.name for info in found[:5])}"
        raise TemplateNotFound(f"{which!r} alone does not name an image", hint=hint)
    if at or not found:
        raise TemplateNotFound(f"there is no template {which!r}", hint=_hint(title, known, others))
    exact = [info for info in found if not colon or info.name.partition(":")[2] == version]
    longer = [info for info in found if info.name.partition(":")[2].startswith(f"{version}.")]
    for info in exact or longer:
        return info
    hint = f"there is {', '.join(sorted({info.name for info in found}))}"
    raise TemplateNotFound(f"there is no version {version!r} of the template {title!r}", hint=hint)


def stem(info: BuiltTemplate) -> str:
    """The name without its version."""
    return info.name.partition(":")[0]


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint that names what may have been meant; empty where nothing resembles it.

    That is a name with a slip of the keyboard in it, or else one that this one begins with or has as a word.
    """
    known = sorted(set(names), key=len, reverse=True)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    words = re.split("[-_.]", name)
    near += (title for title in known if len(title) > 2 and (name.startswith(title) or title in words))
    return f"did you mean {near[0]!r}?" if near else ""


def _hint(title: str, known: Iterable[BuiltTemplate], others: Iterable[str]) -> str | None:
    mine = {name for info in known for name in (stem(info), *info.aliases)} - {IMAGES}
    return nearest(title, {*mine, *others}) or None
