"""The benchmark's own directory: one run at a time; the next run removes what a killed one left."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.core.registry import provider

DIRECTORY = Path("/var/lib/skerry-bench")


@asynccontextmanager
async def workspace(directory: Path = DIRECTORY) -> AsyncIterator[Path]:
    """The directory, empty, with SKERRY_HOME under it. Raises BlockingIOError while another run has it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.environ["SKERRY_HOME"] = str(directory / "home")
        await _clear(directory)
        try:
            yield directory
        finally:
            await _clear(directory)
            _unmount(directory / "home/pool")
            shutil.rmtree(directory)
    finally:
        os.close(lock)


def _unmount(pool: Path) -> None:
    """Unmount the storage pool, which would otherwise stay mounted."""
    if os.path.ismount(pool):
        subprocess.run(["umount", str(pool)], check=True)


async def _clear(directory: Path) -> None:
    """Remove everything in the directory, sandboxes and a Docker daemon included; the empty SKERRY_HOME stays."""
    for path in (directory / "home" / "sandboxes").glob("sb-*"):  # a list would leave out those that are still starting
        print(f"destroying {path.name}, which an earlier run left", file=sys.stderr)
        await provider("local").destroy(path.name)
    if (directory / "docker").exists():
        from bench import dockerd

        dockerd.clear(directory / "docker")
    for path in directory.iterdir():
        if path.name != "home":
            shutil.rmtree(path)
