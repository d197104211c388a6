"""The benchmark's own directory: one run at a time; what a killed run left there is removed by the next."""

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
    """The storage pool stays mounted until somebody takes it away."""
    if os.path.ismount(pool):
        subprocess.run(["umount", str(pool)], check=True)


async def _clear(directory: Path) -> None:
    """Remove what is in it, sandboxes and a Docker daemon included; the empty SKERRY_HOME stays."""
    for path in (directory / "home" / "sandboxes").glob("sb-*"):  # a list would leave out those still on their way up
        print(f"destroying {path.name}, which was left", file=sys.stderr)
        await provider("local").destroy(path.name)
    if (directory / "docker").exists():
        from bench import dockerd

        dockerd.clear(directory / "docker")
    for path in directory.iterdir():
        if path.name != "home":
            shutil.rmtree(path)
