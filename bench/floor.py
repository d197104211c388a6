"""The baselines that no sandbox can beat: a plain process, and `cp`."""

from __future__ import annotations

import os
import time
from pathlib import Path


def spawn() -> float:
    """Seconds to start `/bin/true` and see it end."""
    start = time.perf_counter()
    _run("/bin/true")
    return time.perf_counter() - start


def copy(source: Path, target: Path) -> float:
    """Seconds for `cp` to copy a file."""
    start = time.perf_counter()
    _run("/bin/cp", str(source), str(target))
    return time.perf_counter() - start


def copy_tree(source: Path, target: Path) -> float:
    """Seconds for `cp -a` to copy a tree, none of it by reference."""
    start = time.perf_counter()
    _run("/bin/cp", "-a", "--reflink=never", str(source), str(target))
    return time.perf_counter() - start


def _run(*argv: str) -> None:
    _, status = os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)
    if status != 0:
        raise OSError(f"{' '.join(argv)} ended with {os.waitstatus_to_exitcode(status)}")
