"""The sandboxes of all projects: found by id or name, opened once each, and reconciled with the provider."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.core import (
    PROJECT_LABEL,
    Conflict,
    Corrupted,
    NewerVersion,
    Provider,
    SandboxInfo,
    SandboxNotFound,
    SkerryError,
    is_sandbox_id,
)
from skerry.sdk import AsyncSandbox
from skerry.server.access.check import Subject
from skerry.server.access.identity import Actor
from skerry.server.projects import names
from skerry.server.projects.projects import choices
from skerry.server.projects.providers import Providers
from skerry.server.store import Belonging, Project, Store

log = logging.getLogger("skerry.server")

IDLE = 600.0
"""Seconds after which an unused connection to a sandbox is closed."""


def seconds_left(info: SandboxInfo) -> float:
    """How many seconds a sandbox still has to live."""
    return math.inf if info.expires_at is None else max(0.0, info.expires_at - time.time())


@dataclass(frozen=True, slots=True)
class Located:
    """A sandbox that the actor of this request may use."""

    id: str
    project: Project | None
    provider: str
    """The name of the provider that has it."""
    directory: Directory

    async def use(self, *, auto_start: bool = True) -> AsyncSandbox:
        """The object to work with; all requests share its connection. Raises SandboxNotFound."""
        sandbox = await self.directory.open(self)
        return sandbox if auto_start else sandbox.passive()

    async def info(self) -> SandboxInfo:
        """The sandbox as users see it. Raises SandboxNotFound."""
        return self.shown(await self.directory.providers.of(self).get(self.id))

    def shown(self, info: SandboxInfo) -> SandboxInfo:
        """The result of a call, as users see it."""
        return names.outer_sandbox(self.project, info)


class Directory:
    def __init__(self, providers: Providers, store: Store) -> None:
        self.providers, self._store = providers, store
        self._open: dict[str, AsyncSandbox] = {}
        self._used_at: dict[str, float] = {}
        self.on_news: Callable[[str], Awaitable[None]] | None = None
        self.on_gone: Callable[[str], Awaitable[None]] | None = None
        """Called for each sandbox that this server made or is about to end, or finds to be gone."""

    async def locate(self, actor: Actor, asked: str, *, within: str | None = None) -> tuple[Subject, Located | None]:
        """The sandbox with that id, or with that name in one of the actor's `choices`.

        Does not check whether the actor may use it. Raises Conflict if `within` is the name of several projects.
        """
        found = None
        if is_sandbox_id(asked):
            found = self._store.accounts.owned("sandbox", asked) or await self._look(asked)
        else:
            for project in choices(self._store.accounts, actor, within):
                if found := await self._unclaimed(asked) if project is None else self._named(project, asked):
                    break
        if found is None:
            return Subject(on="sandbox", asked=asked, exists=False), None
        project = self._store.accounts.project(found.project_id)
        subject = Subject(on="sandbox", asked=asked, project=project, sandbox_id=found.id)
        return subject, Located(found.id, project, found.provider, self)

    def _named(self, project: Project, name: str) -> Belonging | None:
        return next(iter(self._store.accounts.named("sandbox", project.id, name)), None)

    async def _unclaimed(self, name: str) -> Belonging | None:
        """A sandbox that belongs to no project, maybe just made on the machine. Raises Conflict for several."""
        found = self._store.accounts.named("sandbox", None, name)
        if len(found) > 1:
            which = ", ".join(sorted(item.id for item in found)[:10])
            raise Conflict(f"{len(found)} sandboxes are called {name!r}: {which}", hint="give the id of one")
        if found:
            return found[0]
        for provider in self.providers.values():
            try:
                info = await provider.find(name)
            except (SandboxNotFound, Conflict):  # several belong to projects, and clients name them with their project
                continue
            await self.note([info])
            noted = self._store.accounts.owned("sandbox", info.id)
            if noted is not None and noted.project_id is None:
                return noted
        return None

    async def _look(self, id: str) -> Belonging | None:
        """A sandbox that was made without this server since the last reconciliation."""
        if await self._store.ownership.get("sandbox", id) is not None:
            return None  # it is gone
        for provider in self.providers.values():
            try:
                info = await provider.get(id)
            except SandboxNotFound:
                continue
            await self.note([info])
            return self._store.accounts.owned("sandbox", id)
        return None

    def provider_of(self, id: str) -> Provider:
        """The provider that has a sandbox; the default one for a sandbox that is not noted yet."""
        noted = self._store.accounts.owned("sandbox", id)
        return self.providers.default if noted is None else self.providers.of(noted)

    async def all(self) -> list[SandboxInfo]:
        """The sandboxes of all providers, oldest first."""
        found = [info for provider in self.providers.values() for info in await provider.list()]
        return found if len(self.providers) == 1 else sorted(found, key=lambda info: (info.created_at, info.id))

    async def open(self, located: Located) -> AsyncSandbox:
        sandbox = self._open.get(located.id)
        if sandbox is None:
            provider = self.providers.of(located)
            made = AsyncSandbox(provider, await provider.get(located.id))
            sandbox = self._open.setdefault(located.id, made)
        self._used_at[located.id] = time.monotonic()
        return sandbox

    async def adopt(self, sandbox: AsyncSandbox, project: Project, *, made_by: str | None = None) -> Located:
        """Note a sandbox that a user has just made for a project."""
        item = Belonging(
            kind="sandbox",
            id=sandbox.id,
            provider=sandbox.provider,
            project_id=project.id,
            name=names.outer(project, sandbox.name),
            made_by=made_by,
        )
        await self._store.ownership.put([item])
        if self._open.setdefault(sandbox.id, sandbox) is not sandbox:
            await sandbox.close()  # made before, under the same idempotency key
        self._used_at[sandbox.id] = time.monotonic()
        await self._tell(sandbox.id)
        return Located(sandbox.id, project, item.provider, self)

    async def _tell(self, id: str) -> None:
        if self.on_news is not None:
            await self.on_news(id)

    @asynccontextmanager
    async def ending(self, id: str) -> AsyncIterator[None]:
        """Around the end of a sandbox. Its events end with it, so they are collected first, if possible."""
        try:
            await self._tell(id)
        except SkerryError as error:
            log.error("events are lost: %s", error, extra={"code": error.code, "sandbox_id": id})
        yield
        await self.forget([id])

    async def forget(self, ids: Sequence[str]) -> None:
        """Close what is open to these sandboxes, and note that they are gone."""
        if self.on_gone is not None:
            for id in ids:
                await self.on_gone(id)
        # Last: a server that is killed before this finds them gone again, and reports their end.
        await self._store.ownership.gone("sandbox", ids)
        for id in ids:
            self._used_at.pop(id, None)
            if (sandbox := self._open.pop(id, None)) is not None:
                await sandbox.close()

    def owner(self, info: SandboxInfo) -> str | None:
        """The id of the project that it belongs to: by its label or, as a damaged sandbox has none, as noted."""
        if PROJECT_LABEL in info.labels:
            return info.labels[PROJECT_LABEL]
        noted = self._store.accounts.owned("sandbox", info.id)
        return None if noted is None else noted.project_id

    async def note(self, infos: Sequence[SandboxInfo]) -> None:
        """Note which projects these belong to, by their labels, if that is not known yet or has changed."""
        fresh, store = [], self._store
        for info in infos:
            before = store.accounts.owned("sandbox", info.id) or await store.ownership.get("sandbox", info.id)
            if before is not None and before.gone and not await self._there(info.id, info.provider):
                continue  # it has ended since the list was made
            project = store.accounts.project(self.owner(info))
            item = Belonging(
                kind="sandbox",
                id=info.id,
                provider=info.provider,
                project_id=None if project is None else project.id,
                name=names.outer(project, info.name),
                made_by=None if before is None else before.made_by,
            )
            if before != item:
                fresh.append(item)
        await store.ownership.put(fresh)

    async def reconcile(self, provider: str, infos: Sequence[SandboxInfo]) -> list[str]:
        """Make the notes equal to what a provider says; returns the ids of those that are gone since."""
        before = {item.id for item in self._store.accounts.all_owned("sandbox") if item.provider == provider}
        await self.note(infos)
        listed = {info.id for info in infos}
        gone = [
            id for id in before - listed if not await self._there(id, provider)
        ]  # it may have been made after the list
        await self.forget(gone)
        return gone

    async def _there(self, id: str, provider: str) -> bool:
        try:
            await self.providers[provider].get(id)
        except SandboxNotFound:
            return False
        except (Corrupted, NewerVersion):
            pass  # it exists, but cannot be read
        return True

    async def close_idle(self) -> None:
        now = time.monotonic()
        for key in [key for key, used in self._used_at.items() if now - used > IDLE]:
            if key in self._open and self._open[key].busy:
                continue
            del self._used_at[key]
            if (sandbox := self._open.pop(key, None)) is not None:
                await sandbox.close()

    async def close(self) -> None:
        for sandbox in list(self._open.values()):
            await sandbox.close()
        self._open.clear()
