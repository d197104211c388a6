"""One small read-only layer over a template's layers, with what every root needs that is not this machine's own.

It holds mount points, the resolver of the sandbox's network, and the machine's public certificates: a root built
elsewhere or long ago trusts whom this machine trusts now. When these change, Skerry makes a new layer; templates stay
as they are.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.storage.host_layer import CA_BUNDLE, build_layer

LAYOUT = "1"
"""Part of the layer's name; raise it when what is built below changes."""

_DIRECTORIES = {
    "": 0o755,
    "proc": 0o555,
    "sys": 0o555,
    "dev": 0o755,
    "tmp": 0o1777,
    "etc": 0o755,
    ".skerry": 0o755,
    "workspace": 0o755,
}
_FILES = {
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "nameserver 127.0.0.53\n",
}
_USER = 1000


def layer(store: Store) -> Path:
    """The directory of the layer, built if it is not there. Raises OSError."""
    path = store.templates / f"fixtures-{_name(_look())}"
    if not path.is_dir():
        build_layer(path, _fill)
    return path


def _look() -> tuple[int, int] | None:
    try:
        info = CA_BUNDLE.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


@cache
def _name(seen: tuple[int, int] | None) -> str:
    return hashlib.sha256(repr((LAYOUT, seen)).encode()).hexdigest()[:16]


def _fill(root: Path) -> None:
    for name, mode in _DIRECTORIES.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    os.chown(root / "workspace", _USER, _USER)
    for name, text in _FILES.items():
        (root / name).write_text(text)
        (root / name).chmod(0o644)
    (root / ".skerry/agent").touch()
    if CA_BUNDLE.exists():
        target = root / CA_BUNDLE.relative_to("/")
        target.parent.mkdir(parents=True)
        for directory in (target.parent, target.parent.parent):
            directory.chmod(0o755)
        import shutil

        shutil.copyfile(CA_BUNDLE, target)
        target.chmod(0o644)
