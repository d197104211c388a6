"""Backups of the database, taken while it is in use."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from skerry.core.errors import Corrupted, FileMissing


def backups(directory: Path) -> list[Path]:
    """Those that are whole, oldest first."""
    return sorted((directory / "backups").glob("skerry-*.db"))


def back_up(database: Path, *, target: Path | None = None, keep: int | None = None) -> Path:
    """Copy the database as it is at this moment, by a second connection; whoever writes meanwhile is not held up.

    Without `target` it goes beside the database, where only the newest `keep` stay. Nothing is left of one that fails.
    Raises FileMissing, Corrupted, OSError.
    """
    if not database.exists():
        raise FileMissing(f"there is no database {database}")
    if target is None:
        target = database.parent / "backups" / time.strftime("skerry-%Y%m%dT%H%M%SZ.db", time.gmtime())
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    os.close(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600))
    try:
        source, copy = sqlite3.connect(f"file:{database}?mode=ro", uri=True), sqlite3.connect(part)
        try:
            source.backup(copy)
            if copy.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise Corrupted(f"the database {database} is damaged: its copy is not whole")
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            source.close()
            copy.close()
        part.rename(target)
    except sqlite3.DatabaseError as error:
        raise Corrupted(f"the database {database} cannot be copied: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    if keep is not None:
        for old in backups(database.parent)[:-keep]:
            old.unlink(missing_ok=True)
    return target
