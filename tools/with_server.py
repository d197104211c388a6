"""Runs a command with the SKERRY_URL and SKERRY_API_KEY of a new server, then removes that server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from tests.conftest import unmount_below
    from tests.server.separate import Separate

    directory = Path(tempfile.mkdtemp(prefix="sk-", dir="/var/tmp"))
    try:
        server = Separate(directory / "home")
        try:
            settings = {"SKERRY_URL": server.url, "SKERRY_API_KEY": server.key}
            return subprocess.run(sys.argv[1:], env=os.environ | settings, check=False).returncode
        finally:
            server.stop()
    finally:
        unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
