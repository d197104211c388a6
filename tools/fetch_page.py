"""Copies the files of Swagger UI from a package that is locked by hash to where the server serves the API page from.

Usage: tools/fetch_page.py WHEEL_DIRECTORY TARGET_DIRECTORY
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

INSIDE = "drf_spectacular_sidecar/static/drf_spectacular_sidecar/swagger-ui-dist/"
FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png", "LICENSE")


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    (wheel,) = source.glob("*.whl")
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            new = target / f"{name}.new"
            new.write_bytes(archive.read(INSIDE + name))
            new.rename(target / name)


if __name__ == "__main__":
    main()
