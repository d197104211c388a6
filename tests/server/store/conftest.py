from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.store.places import PLACES, Place


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(PLACES[request.param](tmp_path))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of two megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], check=True)
    yield path
    gc.collect()  # errors hold statements, statements the file
    subprocess.run(["umount", str(path)], check=True)
