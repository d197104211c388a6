"""The `local` provider: the engine's blocking work, moved to threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import BinaryIO, ParamSpec, TypeVar

import anyio
from anyio.abc import UNIXSocketStream

from skerry.core.errors import ConnectionLost, Unsupported
from skerry.core.models import (
    BuiltTemplate,
    Changes,
    Event,
    ExportInfo,
    Resources,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    Usage,
    VolumeInfo,
)
from skerry.core.pipes import Interruptible
from skerry.core.provider import (
    AGENT_PORT,
    Archivable,
    Channel,
    Deadlines,
    Leases,
    Pausable,
    Portable,
    Provider,
    Resizable,
    Snapshots,
    Stoppable,
    Templates,
    Volumes,
)
from skerry.providers.local.engine import Engine
from skerry.providers.local.kept import Kept
from skerry.providers.local.launch import address
from skerry.providers.local.locks import FileLock
from skerry.providers.local.record import Record

P = ParamSpec("P")
T = TypeVar("T")


BUILD_POLL = 0.2
"""How often one who waits for another's build looks."""


class LocalProvider(
    Provider, Deadlines, Leases, Resizable, Stoppable, Pausable, Snapshots, Archivable, Portable, Volumes, Templates
):
    """Sandboxes on this Linux machine, each in namespaces of its own under crun or runc."""

    name = "local"

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self._make_threads()
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        """A forked child has none of the threads, and must not use the connections."""
        self._make_threads()
        self.engine.connections.close_all()

    def _make_threads(self) -> None:
        # Creates use the processor: few at a time, so that in a burst the first are ready long before the last.
        self._creating = ThreadPoolExecutor(2 * (os.cpu_count() or 1), "skerry-create")
        self._working = ThreadPoolExecutor(32, "skerry-local")

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread, to its end even when the caller is cancelled: nothing is left half done."""
        return await _to_the_end(self._working, partial(function, *args, **kwargs))

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        made: list[Record] = []
        try:
            await _to_the_end(self._creating, lambda: made.append(self.engine.create(spec)))
        except asyncio.CancelledError:
            # Nobody will ever learn of it; but under a key it may be, or become, the answer to another create.
            for record in made if spec.idempotency_key is None else ():
                await _to_the_end(self._working, partial(self.engine.destroy, record.id))
            raise
        return made[0].info()

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return await self._run(self.engine.get, sandbox_id)

    async def find(self, id_or_name: str) -> SandboxInfo:
        return await self._run(self.engine.find, id_or_name)

    async def list(self) -> Sequence[SandboxInfo]:
        return await self._run(self.engine.list)

    async def destroy(self, sandbox_id: str) -> None:
        await self._run(self.engine.destroy, sandbox_id)

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        if port != AGENT_PORT:
            raise Unsupported("the local provider opens only the agent's channel yet", option="port")
        if started := self.engine.connections.take(sandbox_id):
            started.connection.setblocking(False)
            ready = await UNIXSocketStream.from_socket(started.connection)
            return Channel(stream=ready, token=b"", greeting=started.greeting)
        token = (await self._run(self.engine.running, sandbox_id)).token
        try:
            with address(self.engine.socket(sandbox_id)) as name:
                stream = await anyio.connect_unix(name)
        except OSError as error:
            await self._run(self.engine.running, sandbox_id)  # says what became of it, if it has ended
            raise ConnectionLost(f"cannot reach the agent of sandbox {sandbox_id}: {error}") from error
        return Channel(stream=stream, token=bytes.fromhex(token))

    async def usage(self, sandbox_id: str) -> Usage:
        return await self._run(self.engine.usage, sandbox_id)

    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        return await self._run(self.engine.events, sandbox_id, since)

    async def sweep(self) -> Sequence[str]:
        return await self._run(self.engine.sweep)

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        return await self._run(self.engine.record_deadline, sandbox_id, seconds)

    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        await self._run(self.engine.record_lease, sandbox_id, held)

    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        return await self._run(self.engine.set_limits, sandbox_id, resources)

    async def stop(self, sandbox_id: str, *, grace: float) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.stop, sandbox_id, grace)

    async def start(self, sandbox_id: str) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.start, sandbox_id)

    async def restart(self, sandbox_id: str, changes: Changes, *, grace: float) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.restart, sandbox_id, changes, grace)

    async def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.reset, sandbox_id, hard=hard)

    async def recover(self, sandbox_id: str) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.recover, sandbox_id)

    async def pause(self, sandbox_id: str) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.pause, sandbox_id)

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        return await self._run(self.engine.lifecycle.resume, sandbox_id)

    async def create_snapshot(
        self, sandbox_id: str, *, name: str | None, description: str, hidden: bool = False
    ) -> SnapshotInfo:
        take = partial(self.engine.snapshots.create, name=name, description=description, hidden=hidden)
        made: list[Kept] = []
        try:
            await _to_the_end(self._working, lambda: made.append(take(sandbox_id)))
        except asyncio.CancelledError:
            for kept in made:  # nobody will ever learn of it
                await self._run(self.engine.snapshots.delete, kept.id)
            raise
        return made[0].info()

    async def list_snapshots(self, sandbox_id: str | None = None) -> Sequence[SnapshotInfo]:
        return [kept.info() for kept in await self._run(self.engine.snapshots.list, sandbox_id)]

    async def find_snapshot(self, id_or_name: str) -> SnapshotInfo:
        return (await self._run(self.engine.snapshots.find, id_or_name)).info()

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._run(self.engine.snapshots.delete, snapshot_id)

    async def restore_snapshot(self, sandbox_id: str, snapshot_id: str) -> SandboxInfo:
        return (await self._run(self.engine.restoring.restore, sandbox_id, snapshot_id)).info()

    async def archive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        stop = _Stop()
        return await _to_the_end(self._working, lambda: self.engine.cold.archive(sandbox_id, key, stop.tell), stop.set)

    async def unarchive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        stop = _Stop()
        return await _to_the_end(
            self._working, lambda: self.engine.cold.unarchive(sandbox_id, key, stop.tell), stop.set
        )

    async def export_state(
        self, source_id: str, target: BinaryIO, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> ExportInfo:
        stop = _Stop(on_progress, target)
        return await _to_the_end(
            self._working, lambda: self.engine.states.export(source_id, target, key, stop.tell), stop.set
        )

    async def import_state(
        self, source: BinaryIO, spec: SandboxSpec, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> SandboxInfo:
        stop, made = _Stop(on_progress, source), list[Record]()
        try:
            await _to_the_end(
                self._working,
                lambda: made.append(self.engine.states.import_(source, spec, key, stop.tell)),
                stop.set,
            )
        except asyncio.CancelledError:
            for record in made:  # nobody will ever learn of it
                await self._run(self.engine.destroy, record.id)
            raise
        return made[0].info()

    async def create_volume(self, name: str, *, size: int | None, temporary: bool) -> VolumeInfo:
        return await self._run(self.engine.volumes.create, name, size=size, temporary=temporary)

    async def get_volume(self, name: str) -> VolumeInfo:
        return await self._run(self.engine.volumes.get, name)

    async def list_volumes(self) -> Sequence[VolumeInfo]:
        return await self._run(self.engine.volumes.list)

    async def delete_volume(self, name: str) -> None:
        await self._run(self.engine.volumes.delete, name)

    async def find_template(self, which: str) -> BuiltTemplate:
        return await self._run(self.engine.templates.find, which)

    async def list_templates(self) -> Sequence[BuiltTemplate]:
        return await self._run(self.engine.templates.list)

    async def remove_template(self, template_id: str, *, later: bool = False) -> None:
        await self._run(self.engine.templates.remove, template_id, later=later)

    async def has_layer(self, digest: str) -> bool:
        return await self._run(self.engine.templates.has_layer, digest)

    @asynccontextmanager
    async def building(self, digest: str) -> AsyncIterator[None]:
        held: list[FileLock] = []

        def try_to() -> bool:
            if lock := self.engine.templates.try_build(digest):
                held.append(lock)  # also where nobody waits for the answer any more
            return bool(held)

        try:
            while not await self._run(try_to):  # noqa: ASYNC110 - flock has no wait that can be given up
                await anyio.sleep(BUILD_POLL)
            yield
        finally:
            for lock in held:
                self.engine.templates.end_build(digest, lock)

    async def commit_layer(self, sandbox_id: str, digest: str, *, directory: str | None = None) -> None:
        await self._run(self.engine.templates.commit, sandbox_id, digest, directory)

    async def add_template(self, info: BuiltTemplate) -> BuiltTemplate:
        return await self._run(self.engine.templates.add, info)


class _Stopped(Exception):
    """Whoever waited for it was cancelled."""


class _Stop:
    """Ends work in a thread that tells its progress, also while it waits for a stream that can be interrupted."""

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


async def _to_the_end(
    threads: ThreadPoolExecutor, work: Callable[[], T], on_cancel: Callable[[], None] | None = None
) -> T:
    """Run `work` in a thread. A cancellation takes effect when it has ended, which `on_cancel` may hasten."""
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        future.exception()  # looked at, so that it is not reported as forgotten
        raise cancelled
    return future.result()
