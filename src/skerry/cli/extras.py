"""The `pip install` line for an optional part of Skerry, right for every way to install Skerry itself."""

from __future__ import annotations

import re
from importlib import metadata

EXTRA = re.compile(r"^(?P<package>[^;]+?)\s*;\s*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]$")


def install_line(extra: str) -> str:
    """`pip install` with the packages of an extra, as this installation's metadata lists them."""
    found = (EXTRA.match(line) for line in metadata.requires("skerry") or ())
    return " ".join(["pip install", *(f"'{match['package']}'" for match in found if match and match["extra"] == extra)])
