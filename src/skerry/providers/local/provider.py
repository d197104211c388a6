"""The `local` provider: the engine's blocking work, moved to threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import BinaryIO, Concatenate, ParamSpec, TypeVar

import anyio
from anyio.abc import UNIXSocketStream

from skerry.core import (
    AGENT_PORT,
    Archivable,
    BuiltTemplate,
    Changes,
    Channel,
    ConnectionLost,
    Deadlines,
    Event,
    ExportInfo,
    Interruptible,
    Leases,
    Pausable,
    Portable,
    Provider,
    Resizable,
    Resources,
    Room,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    SnapshotInfo,
    Snapshots,
    Stoppable,
    Templates,
    Unsupported,
    Usage,
    VolumeInfo,
    Volumes,
)
from skerry.providers.local.engine import Engine
from skerry.providers.local.host import enough_files
from skerry.providers.local.launch.launch import address
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.lookup import require_running
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage.snapshot_record import Kept
from skerry.providers.local.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")


BUILD_POLL = 0.2
"""Seconds between two looks while a caller waits for another's build."""
SETTLE_PATIENCE = 1.0
"""Seconds that a list waits until expired sandboxes are gone."""


class LocalProvider(
    Provider, Deadlines, Leases, Resizable, Stoppable, Pausable, Snapshots, Archivable, Portable, Volumes, Templates
):
    """Sandboxes on this Linux machine, each in its own namespaces under crun or runc."""

    name = "local"
    encrypts = True
    # No freezing: no process of Skerry runs at that moment, and the sandbox's own agent can only end it.
    on_timeout = frozenset({"stop", "destroy"})

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self._threads = Threads()
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        """For a forked child: it has none of the threads, and must not use the connections."""
        self._threads = Threads()
        self.engine.connections.close_all()

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        made: list[Record] = []
        try:
            await self._threads.create(lambda: made.append(self.engine.create(spec)))
        except asyncio.CancelledError:
            # No caller will ever learn of it; but under a key it may be, or become, the answer to another create.
            with anyio.CancelScope(shield=True):
                for record in made if spec.idempotency_key is None else ():
                    await self.destroy(record.id)
            raise
        return made[0].info()

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return (await self._current(sandbox_id)).info()

    async def find(self, id_or_name: str) -> SandboxInfo:
        return (await self._now(*await self._threads.look(self.engine.lookup.look_up, id_or_name))).info()

    async def _current(self, sandbox_id: str) -> Record:
        """The record as it is now. Raises SandboxNotFound, Corrupted."""
        return await self._now(*await self._threads.look(self.engine.lookup.look, sandbox_id))

    async def _now(self, record: Record, settled: bool) -> Record:
        """The record as it is now; during a change as it is written: a look does not wait for the change to end."""
        if settled or self._threads.is_changing(record.id):
            return record
        return await asyncio.shield(self._settle(record.id))

    def _settle(self, sandbox_id: str) -> asyncio.Task[Record]:
        return self._threads.settle(sandbox_id, partial(self.engine.lookup.current, sandbox_id))

    async def list(self) -> Sequence[SandboxInfo]:
        found = await self._threads.look(self.engine.lookup.look_at_all)
        records = {sandbox_id: record for sandbox_id, (record, _) in found.items()}
        due = [sandbox_id for sandbox_id, (_, settled) in found.items() if not settled]
        ending = {
            sandbox_id: self._settle(sandbox_id) for sandbox_id in due if not self._threads.is_changing(sandbox_id)
        }
        if ending:
            # A sandbox that ends slowly does not hold up the list: it is shown as its record says.
            await asyncio.wait(ending.values(), timeout=SETTLE_PATIENCE)
            again = [id for id, task in ending.items() if not task.done() or task.exception() is not None]
            seen = await self._threads.look(self.engine.lookup.look_at_all, again)
            for sandbox_id, task in ending.items():
                if sandbox_id in again:
                    del records[sandbox_id]
                else:
                    records[sandbox_id] = task.result()
            records |= {sandbox_id: record for sandbox_id, (record, _) in seen.items()}
        return sorted((record.info() for record in records.values()), key=lambda info: info.created_at)

    async def destroy(self, sandbox_id: str) -> None:
        if self._threads.is_changing(sandbox_id):
            with suppress(SandboxNotFound):
                await self._threads.look(self.engine.hasten, sandbox_id)
        await self._change(sandbox_id, self.engine.destroy)

    async def _change(
        self, sandbox_id: str, change: Callable[Concatenate[str, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Do what changes one sandbox: one change at a time, and none waits in a thread for the one before."""
        return await self._threads.change(sandbox_id, partial(change, sandbox_id, *args, **kw))

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        if port != AGENT_PORT:
            raise Unsupported("the local provider opens only the agent's channel", option="port")
        if started := self.engine.connections.take(sandbox_id):
            started.connection.setblocking(False)
            ready = await UNIXSocketStream.from_socket(started.connection)
            return Channel(stream=ready, token=b"", greeting=started.greeting)
        token = require_running(await self._current(sandbox_id)).token
        try:
            with enough_files(), address(self.engine.changes.socket(sandbox_id)) as name:
                stream = await anyio.connect_unix(name)
        except OSError as error:
            require_running(await self._current(sandbox_id))  # raises what became of it, if it has ended
            raise ConnectionLost(f"cannot reach the agent of sandbox {sandbox_id}: {error}") from error
        return Channel(stream=stream, token=bytes.fromhex(token))

    async def usage(self, sandbox_id: str) -> Usage:
        await self._current(sandbox_id)
        return await self._threads.look(self.engine.usage, sandbox_id)

    async def room(self) -> Room:
        return await self._threads.look(self.engine.room)

    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        return await self._threads.look(self.engine.events, sandbox_id, since)

    async def sweep(self) -> Sequence[str]:
        return await self._threads.work(self.engine.sweep)

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.settings.record_deadline, seconds)

    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        await self._change(sandbox_id, self.engine.settings.record_lease, held)

    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.settings.set_limits, resources)

    async def stop(self, sandbox_id: str, *, grace: float) -> SandboxInfo:
        stopping = self.engine.lifecycle.stopping
        return await self._threads.change_in_steps(sandbox_id, lambda: stopping(sandbox_id, grace))

    async def start(self, sandbox_id: str) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.lifecycle.start)

    async def restart(self, sandbox_id: str, changes: Changes, *, grace: float) -> SandboxInfo:
        restarting = self.engine.lifecycle.restarting
        return await self._threads.change_in_steps(sandbox_id, lambda: restarting(sandbox_id, changes, grace))

    async def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.lifecycle.reset, hard=hard)

    async def recover(self, sandbox_id: str) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.lifecycle.recover)

    async def pause(self, sandbox_id: str) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.lifecycle.pause)

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        return await self._change(sandbox_id, self.engine.lifecycle.resume)

    async def create_snapshot(
        self, sandbox_id: str, *, name: str | None, description: str, hidden: bool = False
    ) -> SnapshotInfo:
        take = partial(self.engine.capture.take, name=name, description=description, hidden=hidden)
        made: list[Kept] = []
        try:
            await self._threads.change(sandbox_id, lambda: made.append(take(sandbox_id)))
        except asyncio.CancelledError:
            for kept in made:  # no caller will ever learn of it
                await self._threads.work(self.engine.snapshots.delete, kept.id)
            raise
        return made[0].info()

    async def list_snapshots(self, sandbox_id: str | None = None) -> Sequence[SnapshotInfo]:
        return [kept.info() for kept in await self._threads.look(self.engine.snapshots.list, sandbox_id)]

    async def find_snapshot(self, id_or_name: str) -> SnapshotInfo:
        return (await self._threads.look(self.engine.snapshots.find, id_or_name)).info()

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._threads.work(self.engine.snapshots.delete, snapshot_id)

    async def restore_snapshot(self, sandbox_id: str, snapshot_id: str) -> SandboxInfo:
        return (await self._change(sandbox_id, self.engine.restore.to_snapshot, snapshot_id)).info()

    async def archive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        stop = _Stop()
        archiving = self.engine.archives.archiving
        return await self._threads.change_in_steps(sandbox_id, lambda: archiving(sandbox_id, key, stop.tell), stop.set)

    async def unarchive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        stop = _Stop()
        unarchive = partial(self.engine.archives.unarchive, sandbox_id, key, stop.tell)
        return await self._threads.change(sandbox_id, unarchive, stop.set)

    async def export_state(
        self, source_id: str, target: BinaryIO, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> ExportInfo:
        stop = _Stop(on_progress, target)
        export = partial(self.engine.exports.export, source_id, target, key, stop.tell)
        return await self._threads.work_patiently(export, stop.set)

    async def import_state(
        self, source: BinaryIO, spec: SandboxSpec, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> SandboxInfo:
        stop, made = _Stop(on_progress, source), list[Record]()
        try:
            await self._threads.work_until(
                lambda: made.append(self.engine.exports.import_(source, spec, key, stop.tell)), stop.set
            )
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                for record in made:  # no caller will ever learn of it
                    await self.destroy(record.id)
            raise
        return made[0].info()

    async def create_volume(
        self, name: str, *, size: int | None, temporary: bool, encrypted: bool = False
    ) -> VolumeInfo:
        create = partial(self.engine.volumes.create, name, size=size, temporary=temporary, encrypted=encrypted)
        return await self._threads.work(create)

    async def get_volume(self, name: str) -> VolumeInfo:
        return await self._threads.look(self.engine.volumes.get, name)

    async def list_volumes(self) -> Sequence[VolumeInfo]:
        return await self._threads.look(self.engine.volumes.list)

    async def delete_volume(self, name: str) -> None:
        await self._threads.work(self.engine.volumes.delete, name)

    async def find_template(self, which: str) -> BuiltTemplate:
        return await self._threads.look(self.engine.templates.find, which)

    async def list_templates(self) -> Sequence[BuiltTemplate]:
        return await self._threads.look(self.engine.templates.list)

    async def remove_template(self, template_id: str, *, later: bool = False) -> None:
        await self._threads.work(self.engine.templates.remove, template_id, later=later)

    async def has_layer(self, digest: str) -> bool:
        return await self._threads.look(self.engine.templates.has_layer, digest)

    @asynccontextmanager
    async def building(self, digest: str) -> AsyncIterator[None]:
        held: list[FileLock] = []

        def try_to() -> bool:
            if lock := self.engine.templates.try_build(digest):
                held.append(lock)  # also when the caller no longer waits for the answer
            return bool(held)

        try:
            while not await self._threads.work(try_to):  # noqa: ASYNC110 - a wait for flock cannot be cancelled
                await anyio.sleep(BUILD_POLL)
            yield
        finally:
            for lock in held:
                self.engine.templates.end_build(digest, lock)

    async def commit_layer(self, sandbox_id: str, digest: str, *, directory: str | None = None) -> None:
        await self._change(sandbox_id, self.engine.templates.commit, digest, directory)

    async def add_template(self, info: BuiltTemplate) -> BuiltTemplate:
        return await self._threads.work(self.engine.templates.add, info)


class _Stopped(Exception):
    """The caller that waited for the work was cancelled."""


class _Stop:
    """Ends work in a thread at its next report of progress, or while it waits for a stream that can be interrupted."""

    def __init__(self, on_progress: Callable[[int], None] | None = None, stream: BinaryIO | None = None) -> None:
        self._on_progress = on_progress
        self._asked = threading.Event()
        self._stream: object = stream

    def set(self) -> None:
        self._asked.set()
        if isinstance(self._stream, Interruptible):
            self._stream.interrupt()

    def tell(self, done: int) -> None:
        if self._asked.is_set():
            raise _Stopped
        if self._on_progress is not None:
            self._on_progress(done)
