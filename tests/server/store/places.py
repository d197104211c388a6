"""Databases of every kind for tests that know the contract alone: another kind is one more of `PLACES`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skerry.core import Event
from skerry.server.store import Accounts, AuditEntry, Belonging, Store

PLACES: dict[str, Callable[[Path], str | Path]] = {"sqlite": lambda directory: directory / "skerry.db"}
"""What `Store.open` gets for an empty database of each kind."""


class Place:
    """A database; each opening stands for a process."""

    def __init__(self, where: str | Path) -> None:
        self.where = where

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        store = Store.open(self.where, provider="local")
        try:
            yield store
        finally:
            await store.close()


def sandbox(id: str, project: str | None, name: str | None = None, **more: Any) -> Belonging:
    return Belonging(kind="sandbox", id=id, provider="local", project_id=project, name=name, **more)


def event(box: str, cursor: int, type: str = "created", at: float | None = None) -> Event:
    return Event(cursor=cursor, type=type, sandbox_id=box, time=time.time() if at is None else at, data={"n": "1"})


def entry(operation: str, project: str | None = None, at: float | None = None) -> AuditEntry:
    return AuditEntry(
        time=time.time() if at is None else at, actor="user:x", credential="", action="a", operation=operation,
        target="", project_id=project, outcome="ok", address="", request_id="",
    )  # fmt: skip


def answers(accounts: Accounts) -> dict[str, object]:
    """What a view answers, by every way to look something up."""
    users, projects = accounts.users(), accounts.projects()
    boxes = sorted(accounts.all_owned("sandbox"), key=lambda item: item.id)
    return {
        "users": [(user, accounts.user(user.id), accounts.find_user(user.name)) for user in users],
        "projects": [(item, accounts.project(item.id), accounts.project_with_slug(item.slug)) for item in projects],
        "memberships": {user.id: accounts.projects_of(user.id) for user in users},
        "members": {project.id: accounts.members(project.id) for project in projects},
        "keys": {user.id: accounts.keys_of(user.id) for user in users},
        "tokens": {box.id: accounts.tokens_of(box.id) for box in boxes},
        "boxes": [(box, accounts.owned("sandbox", box.id)) for box in boxes],
        "names": {
            (box.project_id, box.name): {item.id for item in accounts.named("sandbox", box.project_id, box.name or "")}
            for box in boxes
        },
        "leases": sorted(accounts.leases(), key=lambda lease: lease.id),
    }


async def is_equal(store: Store, place: Place) -> None:
    """Check that the view is what the database has."""
    async with place.open() as fresh:
        assert store.accounts.rows() == fresh.accounts.rows()
        assert answers(store.accounts) == answers(fresh.accounts)
