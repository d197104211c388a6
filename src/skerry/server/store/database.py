"""The SQLite file: opened, checked and migrated; read in the event loop, written by one thread.

A read of an indexed row takes some microseconds, a hop to a thread twenty times that, so reads are plain calls. Every
change is one BEGIN IMMEDIATE transaction on the writer's thread, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from skerry.core import Conflict, Corrupted, DiskFull, ProviderUnavailable, SkerryError
from skerry.server.store.backup import back_up, backups, schema_of

T = TypeVar("T")

_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000", "foreign_keys=ON")


class Database:
    """One open file. Raises Corrupted, DiskFull or ProviderUnavailable for what SQLite cannot do.

    A row that refers to a row that no longer exists raises Conflict.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-db")
        with _translated(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._writer = _connect(path)
            _examine(self._writer, path)
            _migrate(self._writer, path)
            self._reader = _connect(path)

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        with _translated(self.path):
            return self._reader.execute(sql, values).fetchall()

    def row(self, sql: str, *values: Any) -> sqlite3.Row | None:
        with _translated(self.path):
            found: sqlite3.Row | None = self._reader.execute(sql, values).fetchone()
            return found

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` inside its own transaction and return its result; an error undoes the transaction.

        Cancelling the caller does not undo it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writer_thread, self._transact, work)

    async def execute(self, sql: str, *values: Any) -> int:
        """Execute one statement as a transaction; returns how many rows it changed."""
        return await self.write(lambda db: db.execute(sql, values).rowcount)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _translated(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._writer)
                if isinstance(result, sqlite3.Cursor):
                    # A cursor that another thread frees resets its statement there, which may be in use here again.
                    result.close()
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # a full disk may have rolled back already
                    self._writer.execute("ROLLBACK")
                raise
            return result

    def close(self) -> None:
        self._writer_thread.shutdown()
        self._reader.close()
        self._writer.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _examine(connection: sqlite3.Connection, path: Path) -> None:
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged(path, "; ".join(found))


def damaged(path: Path, what: str) -> Corrupted:
    """The error for a damaged file, which names the newest backup."""
    there = backups(path.parent)
    # SQLite would write the rest of the -wal into any file with this name.
    away = f"move {path}, {path}-wal and {path}-shm away"
    hint = (
        f"stop the server, {away} and copy the newest backup to {path}: {there[-1]}"
        if there
        else f"there is no backup beside it; {away} to begin with an empty database: sandboxes stay, users do not"
    )
    return Corrupted(f"the database {path} is damaged: {what}", hint=hint)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise  # a repository knows the meaning
        raise Conflict("what this belongs to was removed in the meantime") from error
    except sqlite3.DatabaseError as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.DatabaseError, path: Path) -> SkerryError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"there is no room for the database {path}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    return ProviderUnavailable(f"the database {path} cannot be used: {error}", hint="see the server's log")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date, each step in a transaction, after a backup for a return to the old version."""
    steps = sorted(
        (file for file in resources.files("skerry.server.store.migrations").iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(steps):
        older = [file for file in backups(path.parent) if 0 < schema_of(file) <= len(steps)]
        otherwise = f", or restore the newest backup from before: {older[-1]}" if older else ""
        raise ProviderUnavailable(
            f"a newer Skerry wrote the database (schema {version}, this one knows {len(steps)})",
            hint=f"install that version{otherwise}",
        )
    if 0 < version < len(steps):
        back_up(path)
    for number, step in enumerate(steps[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;\n{step.read_text()}\nPRAGMA user_version={number};\nCOMMIT;")
