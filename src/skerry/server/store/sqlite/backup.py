"""Backups of the database, taken while it is in use."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from skerry.core import Corrupted, DiskFull, FileMissing

_VERSION_AT = 60
"""The offset of `user_version` in a database file: four bytes, big-endian."""


def backups(directory: Path) -> list[Path]:
    """The complete backups, oldest first."""
    return sorted((directory / "backups").glob("skerry-*.db"))


def schema_of(file: Path) -> int:
    """The number of the last migration of a database; 0: it is not one of ours."""
    with open(file, "rb") as header:
        header.seek(_VERSION_AT)
        return int.from_bytes(header.read(4), "big")


def back_up(database: Path, *, target: Path | None = None, keep: int | None = None) -> Path:
    """Copy the database as it is at this moment, by a second connection that does not delay writers.

    Without `target`, the copy goes beside the database, where only the newest `keep` stay. A failed one leaves nothing.
    Raises FileMissing, Corrupted, DiskFull, OSError.
    """
    if not database.exists():
        raise FileMissing(f"there is no database {database}")
    if target is None:
        target = database.parent / "backups" / time.strftime("skerry-%Y%m%dT%H%M%SZ.db", time.gmtime())
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_parts(target.parent)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    os.close(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600))
    try:
        source, copy = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True), sqlite3.connect(part)
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
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise DiskFull(f"there is no room for a copy of the database in {target.parent}") from error
        raise Corrupted(f"the database {database} cannot be copied: {error}") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            part.with_name(f"{part.name}{suffix}").unlink(missing_ok=True)
    if keep is not None:
        for old in backups(database.parent)[:-keep]:
            old.unlink(missing_ok=True)
    return target


def _remove_parts(directory: Path) -> None:
    """Remove what processes left that were killed while they copied; a process makes one copy at a time."""
    for part in directory.glob(".skerry-*.db.*"):
        process = part.name.rpartition(".")[2].partition("-")[0]
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            part.unlink(missing_ok=True)
