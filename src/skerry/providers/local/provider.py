"""The `local` provider: the engine's blocking work, moved to threads."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio.to_thread import run_sync

from skerry.core.errors import ConnectionLost, Unsupported
from skerry.core.models import Event, Resources, SandboxInfo, SandboxSpec, Usage
from skerry.core.provider import AGENT_PORT, Channel, Deadlines, Leases, Provider, Resizable
from skerry.providers.local.engine import Engine
from skerry.providers.local.launch import address

P = ParamSpec("P")
T = TypeVar("T")


class LocalProvider(Provider, Deadlines, Leases, Resizable):
    """Sandboxes on this Linux machine, each in namespaces of its own under crun or runc."""

    name = "local"

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread to its end: a cancelled caller leaves nothing half done."""
        return await run_sync(partial(function, *args, **kwargs))

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        info = await self._run(self.engine.create, spec)
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(info.id)
            raise
        return info

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
        record = self.engine.running(sandbox_id)
        try:
            with address(self.engine.socket(record)) as name:
                stream = await anyio.connect_unix(name)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                self.engine.running(sandbox_id)  # says what became of it, if it ended meanwhile
            raise ConnectionLost(f"cannot reach the agent of sandbox {sandbox_id}: {error}") from error
        return Channel(stream=stream, token=bytes.fromhex(record.token))

    async def usage(self, sandbox_id: str) -> Usage:
        return await self._run(self.engine.usage, sandbox_id)

    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        return await self._run(self.engine.events, sandbox_id, since)

    async def sweep(self) -> Sequence[str]:
        return await self._run(self.engine.sweep)

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        return await self._run(self.engine.record_deadline, sandbox_id, seconds)

    async def record_lease(self, sandbox_id: str) -> None:
        await self._run(self.engine.record_lease, sandbox_id)

    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        return await self._run(self.engine.set_limits, sandbox_id, resources)
