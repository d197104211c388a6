"""Small files of the server's own, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put `data` in the place of what is there; for its owner alone unless told otherwise. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
