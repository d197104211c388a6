"""overlayfs's own marks in a layer, and how an archive says the same: the whiteouts of OCI image layers."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from skerry.core import Unsupported

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
OPAQUE_XATTR = b"trusted.overlay.opaque"

_OVERLAY = "trusted.overlay."
_MAX_NAME = 255
_KEPT = ("security.capability", "system.posix_acl_access", "system.posix_acl_default")
_DROPPED = frozenset(_OVERLAY + name for name in ("origin", "impure", "nlink", "upper", "uuid"))
"""Caches and back references of one mounted overlay; overlayfs makes them again."""
_OF_THE_HOST = ("security.", "btrfs.")
"""Labels of the host's security modules, and properties of the file system the layer lies on."""


class Attributes(NamedTuple):
    kept: tuple[tuple[bytes, bytes], ...] = ()
    opaque: bool = False


_NONE = Attributes()


def is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def needs_escape(name: bytes) -> bool:
    return name.startswith(WHITEOUT)


def may_be_set(name: bytes) -> bool:
    """Whether an archive may bring this attribute."""
    if b"\0" in name or len(name) > _MAX_NAME:
        return False
    return name.startswith(b"user.") or os.fsdecode(name) in _KEPT


def read_attributes(file: int | str, path: bytes) -> Attributes:
    """The attributes of an open file, or of what a path names if it is not a link.

    Raises Unsupported for an attribute that changes what a file is and that no archive can carry.
    """
    names = os.listxattr(file, follow_symlinks=False) if isinstance(file, str) else os.listxattr(file)
    if not names:
        return _NONE
    kept, opaque = [], False
    for name in sorted(names):
        if name.startswith("user.") or name in _KEPT:
            value = os.getxattr(file, name, follow_symlinks=False) if isinstance(file, str) else os.getxattr(file, name)
            kept.append((os.fsencode(name), value))
        elif name == _OVERLAY + "opaque" and os.getxattr(file, name) == b"y":
            opaque = True
        elif name not in _DROPPED and not name.startswith(_OF_THE_HOST):
            raise Unsupported(
                f"{os.fsdecode(path)!r} has the attribute {name}, which an archive cannot carry",
                option="xattrs",
                hint="layers must come from an overlay mounted with redirect_dir=off and metacopy=off"
                if name.startswith(_OVERLAY)
                else "remove the attribute",
            )
    return Attributes(tuple(kept), opaque)
