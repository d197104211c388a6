"""Rows of the tables as records, and which rows of the accounts a transaction has changed.

Temporary triggers on the writer's connection note the keys of changed rows, those of cascades too, so that no write can
forget to tell the view.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from skerry.server.access.permissions import Role, Scope
from skerry.server.store.accounts import Change, TableName
from skerry.server.store.records import (
    ApiKey,
    Belonging,
    Lease,
    Membership,
    Project,
    SandboxToken,
    Session,
    User,
)


def user(row: sqlite3.Row) -> User:
    return User(
        id=row["id"],
        name=row["name"],
        admin=bool(row["admin"]),
        disabled=bool(row["disabled"]),
        created_at=row["created_at"],
        has_password=row["password"] is not None,
    )


def belonging(row: sqlite3.Row) -> Belonging:
    return Belonging(
        kind=row["kind"],
        id=row["id"],
        provider=row["provider"],
        project_id=row["project_id"],
        name=row["name"],
        gone=row["gone_at"] is not None,
        made_by=row["made_by"],
    )


def _session(row: sqlite3.Row) -> Session:
    return Session(hash=row["hash"], user_id=row["user_id"], expires_at=row["expires_at"])


def _project(row: sqlite3.Row) -> Project:
    names = ("id", "slug", "name", "personal_of", "created_at", "made_by")
    return Project(**{name: row[name] for name in names})


def _membership(row: sqlite3.Row) -> Membership:
    return Membership(project_id=row["project_id"], user_id=row["user_id"], role=Role(row["role"]))


def _key(row: sqlite3.Row) -> tuple[ApiKey, bytes]:
    names = ("id", "user_id", "name", "project_id", "created_at", "expires_at", "last_used_at")
    scopes = frozenset(Scope(scope) for scope in row["scopes"].split())
    return ApiKey(scopes=scopes, **{name: row[name] for name in names}), row["hash"]


def _token(row: sqlite3.Row) -> tuple[SandboxToken, bytes]:
    names = ("id", "sandbox_id", "project_id", "created_by", "created_at", "expires_at")
    return SandboxToken(role=Role(row["role"]), **{name: row[name] for name in names}), row["hash"]


def _lease(row: sqlite3.Row) -> Lease:
    names = ("kind", "id", "holder", "process")
    return Lease(preparing=bool(row["preparing"]), **{name: row[name] for name in names})


@dataclass(frozen=True, slots=True)
class _Watched:
    """A table of the view: its name in the database, its key, its rows as records, and which rows are in the view."""

    sql: str
    key: tuple[str, ...]
    record: Callable[[sqlite3.Row], Any]
    where: str = "1"

    def key_of(self, row: sqlite3.Row) -> Any:
        values = tuple(row[name] for name in self.key)
        return values if len(values) > 1 else values[0]


_WATCHED: dict[TableName, _Watched] = {
    "users": _Watched("users", ("id",), user),
    "sessions": _Watched("sessions", ("hash",), _session),
    "projects": _Watched("projects", ("id",), _project),
    "members": _Watched("members", ("project_id", "user_id"), _membership),
    "keys": _Watched("api_keys", ("id",), _key),
    "tokens": _Watched("sandbox_tokens", ("id",), _token),
    "belongings": _Watched("belongings", ("kind", "id"), belonging, "gone_at IS NULL"),
    "leases": _Watched("leases", ("kind", "id"), _lease),
}


def watch(db: sqlite3.Connection) -> None:
    """Note from now on which rows this connection changes."""
    db.execute("CREATE TEMP TABLE changed (name TEXT NOT NULL, a NOT NULL, b)")
    for name, table in _WATCHED.items():
        for what, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            key = ", ".join(f"{row}.{column}" for column in table.key) + (", NULL" if len(table.key) == 1 else "")
            db.execute(
                f"CREATE TEMP TRIGGER {name}_{what} AFTER {what} ON main.{table.sql}"
                f" BEGIN INSERT INTO changed VALUES ('{name}', {key}); END"
            )


def changed(db: sqlite3.Connection) -> list[Change]:
    """What the open transaction has changed until now; forgets it."""
    found: list[Change] = []
    for (name,) in db.execute("SELECT DISTINCT name FROM changed").fetchall():
        table = _WATCHED[name]
        same = " AND ".join(f"{column} = {at}" for column, at in zip(table.key, ("was_a", "was_b"), strict=False))
        rows = db.execute(
            "SELECT * FROM (SELECT DISTINCT a AS was_a, b AS was_b FROM changed WHERE name = ?)"
            f" LEFT JOIN {table.sql} ON {same} AND {table.where}",
            (name,),
        )
        for row in rows.fetchall():
            key = row["was_a"] if len(table.key) == 1 else (row["was_a"], row["was_b"])
            found.append(Change(name, key, None if row[table.key[0]] is None else table.record(row)))
    if found:
        db.execute("DELETE FROM changed")
    return found


def everything(db: sqlite3.Connection) -> Iterator[Change]:
    """All rows of the view."""
    for name, table in _WATCHED.items():
        for row in db.execute(f"SELECT * FROM {table.sql} WHERE {table.where}"):
            yield Change(name, table.key_of(row), table.record(row))
