"""The SQLite file: opened, checked and migrated; one thread writes, one reads, and the event loop waits for neither.

Every change is one BEGIN IMMEDIATE transaction on the writer's thread, one after the other. What it has changed of the
accounts goes to the view before the caller continues.
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
from skerry.server.store.accounts import Accounts
from skerry.server.store.sqlite.backup import back_up, backups, schema_of
from skerry.server.store.sqlite.rows import changed, everything, watch

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop

_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000", "foreign_keys=ON", "temp_store=MEMORY")
_CONFLICTS = {
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "what this belongs to was removed in the meantime",
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: "there is one already",
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: "there is one already",
}


class Database:
    """One open file, and the view that is kept equal to it.

    Raises Corrupted, DiskFull or ProviderUnavailable for what SQLite cannot do, and Conflict for a row that refers to a
    row that no longer exists.
    """

    def __init__(self, path: Path, accounts: Accounts, provider: str = "local") -> None:
        self.path, self._accounts = path, accounts
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-db")
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-db-read")
        with _translated(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._writer = _connect(path)
            _examine(self._writer, path)
            _migrate(self._writer, path, provider)
            self._reader = _connect(path)
            watch(self._writer)
        self._seen: int | None = None
        """The version of the data that the view is equal to; own commits do not change it. None: unknown."""
        accounts.become(self._load())

    async def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return await asyncio.get_running_loop().run_in_executor(self._reader_thread, self._read, sql, values)

    async def row(self, sql: str, *values: Any) -> sqlite3.Row | None:
        return next(iter(await self.rows(sql, *values)), None)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` inside its own transaction and return its result; an error undoes the transaction.

        Cancelling the caller does not undo it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer_thread, self._transact, work, loop)

    async def execute(self, sql: str, *values: Any) -> int:
        """Execute one statement as a transaction; returns how many rows it changed."""
        return await self.write(lambda db: db.execute(sql, values).rowcount)

    async def refresh(self) -> bool:
        """Load the accounts again if another process has written; returns whether it has."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer_thread, self._look, loop)

    def _read(self, sql: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with _translated(self.path):
            return self._reader.execute(sql, values).fetchall()

    def _transact(self, work: Callable[[sqlite3.Connection], T], loop: Loop) -> T:
        with _translated(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._writer)
                if isinstance(result, sqlite3.Cursor):
                    # A cursor that another thread frees resets its statement there, which may be in use here again.
                    result.close()
                changes = changed(self._writer)
                current = self._version() == self._seen
                self._seen, seen = None, self._seen
                self._writer.execute("COMMIT")  # an error here does not say whether it took effect
                self._seen = seen
            except BaseException:
                if self._writer.in_transaction:  # a full disk may have rolled back already
                    self._writer.execute("ROLLBACK")
                raise
            if not current:
                self._tell(loop, self._accounts.become, self._load())
            elif changes:
                self._tell(loop, self._accounts.apply, changes)
            return result

    def _look(self, loop: Loop) -> bool:
        with _translated(self.path):
            if self._version() == self._seen:
                return False
            self._tell(loop, self._accounts.become, self._load())
            return True

    def _load(self) -> Accounts:
        """The accounts as they are now."""
        fresh = Accounts()
        with _translated(self.path):
            self._writer.execute("BEGIN")
            try:
                seen = self._version()
                fresh.apply(everything(self._writer))
                self._seen = seen
            finally:
                self._writer.execute("ROLLBACK")
        return fresh

    def _version(self) -> int:
        """A number that changes when another connection commits."""
        (version,) = self._writer.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _tell(self, loop: Loop, take: Callable[[T], None], what: T) -> None:
        """Change the view in the event loop, before it continues with the caller."""
        try:
            loop.call_soon_threadsafe(take, what)
        except RuntimeError:  # the loop has ended, and another one may use this database
            self._seen = None

    def close(self) -> None:
        """Waits for what is under way."""
        self._writer_thread.shutdown()
        self._reader_thread.shutdown()
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
    except sqlite3.DatabaseError as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.DatabaseError, path: Path) -> SkerryError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code in _CONFLICTS:
        return Conflict(_CONFLICTS[code])
    code &= 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"there is no room for the database {path}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    return ProviderUnavailable(f"the database {path} cannot be used: {error}", hint="see the server's log")


def _migrate(connection: sqlite3.Connection, path: Path, provider: str) -> None:
    """Bring the schema up to date, each step in a transaction, after a backup for a return to the old version."""
    steps = sorted(
        (
            file
            for file in resources.files("skerry.server.store.sqlite.migrations").iterdir()
            if file.name.endswith(".sql")
        ),
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
    connection.create_function("server_provider", 0, lambda: provider)
    for number, step in enumerate(steps[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;\n{step.read_text()}\nPRAGMA user_version={number};\nCOMMIT;")
