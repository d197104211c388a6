"""Rules for names of sandboxes and volumes, for where volumes are mounted, and for text that people are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from skerry.core.config import parse_size
from skerry.core.errors import InvalidArgument
from skerry.core.ids import ALPHABET
from skerry.core.models import VolumeMount

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
RESERVED_LABELS = "skerry."
"""The prefix of labels that a server sets."""
PROJECT_LABEL = "skerry.project"
"""The label that holds a sandbox's project. A server names such a sandbox `<slug>.<name>`: see `plain_name`."""
SLUG = re.compile(rf"[{ALPHABET}]{{6}}\.")
MAX_MOUNTS = 32
RESERVED = ("/proc", "/sys", "/dev", "/.skerry")
"""What a sandbox has there is its own kernel's view and its agent."""
_LONGEST = 1024
OBEYED = r"\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What terminals and browsers obey instead of showing it, as a set of a regular expression: control characters but tab
and newline, and marks that change the direction of text."""
_OBEYED = re.compile(f"[{OBEYED}]")


def check_shown(text: str, what: str) -> str:
    """Return the text, which others will be shown. Raises InvalidArgument for one that could deceive them."""
    if found := _OBEYED.search(text):
        raise InvalidArgument(f"{what} must not contain the control character U+{ord(found[0]):04X}")
    return text


def plain_name(name: str | None, labels: Mapping[str, str]) -> str | None:
    """What people call a sandbox: its name without the slug by which a server keeps the names of projects apart."""
    if name is None or PROJECT_LABEL not in labels:
        return name
    return SLUG.sub("", name, count=1) if SLUG.match(name) else name


def check_volume_name(name: object) -> str:
    """Raises InvalidArgument."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        hint = "use up to 63 of a-z 0-9 . _ - and begin with a letter or digit"
        raise InvalidArgument(f"{name!r} is not a name for a volume", hint=hint)
    return name


def check_mounts(mounts: Iterable[VolumeMount], reserved: Iterable[str] = RESERVED) -> tuple[VolumeMount, ...]:
    """The mounts with plain paths, each after those it lies in. Raises InvalidArgument."""
    checked: dict[PurePosixPath, VolumeMount] = {}
    for mount in mounts:
        path = _mount_point(mount.path, tuple(reserved))
        if path in checked:
            raise InvalidArgument(f"two volumes are to be mounted at {path}")
        if type(mount.read_only) is not bool:
            raise InvalidArgument(f"read_only must be true or false, not {mount.read_only!r}")
        _check_making(mount)
        checked[path] = VolumeMount(
            name=check_volume_name(mount.name),
            path=str(path),
            subpath=_subpath(mount.subpath),
            read_only=mount.read_only,
            size=None if mount.size is None else parse_size(mount.size, "size"),
            persistent=mount.persistent,
            mount_existing=mount.mount_existing,
        )
    if len(checked) > MAX_MOUNTS:
        raise InvalidArgument(f"{len(checked)} volumes are more than {MAX_MOUNTS}")
    return tuple(checked[path] for path in sorted(checked))


def _check_making(mount: VolumeMount) -> None:
    if mount.persistent not in (None, True, False) or type(mount.mount_existing) is not bool:
        raise InvalidArgument(f"persistent and mount_existing of volume {mount.name!r} must be true or false")
    if mount.mount_existing and mount.makes:
        hint = "leave mount_existing out to make the volume where it is missing, or size and persistent"
        raise InvalidArgument(f"volume {mount.name!r} is to exist, and is to be made", hint=hint)


def _mount_point(text: object, reserved: tuple[str, ...]) -> PurePosixPath:
    hint = "give an absolute path such as /data"
    if not isinstance(text, str) or not text.startswith("/") or not _encodable(text):
        raise InvalidArgument(f"a volume cannot be mounted at {text!r}", hint=hint)
    path = PurePosixPath("/" + text.lstrip("/"))
    if path == PurePosixPath("/") or ".." in path.parts:
        raise InvalidArgument(f"a volume cannot be mounted at {text!r}", hint=hint)
    for taken in reserved:
        if path.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(path):
            raise InvalidArgument(f"a volume cannot be mounted at {text!r}: {taken} is the sandbox's own", hint=hint)
    return path


def _subpath(text: object) -> str:
    if not isinstance(text, str) or text.startswith("/") or not _encodable(text):
        raise InvalidArgument(f"{text!r} is not a path in a volume", hint="give a relative path such as cache/pip")
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise InvalidArgument(f"{text!r} leads out of the volume", hint="give a path without ..")
    return "" if path == PurePosixPath(".") else str(path)


def _encodable(text: str) -> bool:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return b"\0" not in data and len(data) <= _LONGEST and all(len(part) <= 255 for part in data.split(b"/"))
