"""The `remote` provider: each verb is a request to a Skerry server, and `dial` a WebSocket of wire frames."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import anyio

from skerry.core import (
    AGENT_PORT,
    Archivable,
    BuiltTemplate,
    Changes,
    Channel,
    ConnectionLost,
    Corrupted,
    Deadlines,
    Event,
    ExportInfo,
    Leases,
    Pausable,
    Portable,
    Provider,
    Resizable,
    Resources,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    SkerryError,
    SnapshotInfo,
    SnapshotNotFound,
    Snapshots,
    Stoppable,
    Templates,
    Unsupported,
    Usage,
    VolumeInfo,
    VolumeNotFound,
    Volumes,
    from_plain,
    is_snapshot_id,
)
from skerry.http import Client, Login, Request, WebSocketStream, connect_websocket, find_login, idempotent
from skerry.providers.remote import export
from skerry.providers.remote.greeting import greeted
from skerry.providers.remote.holder import Holder
from skerry.providers.remote.threads import Stop, abandonable, to_the_end

T = TypeVar("T")

SUBPROTOCOL = "skerry.wire.1"
REDIAL_FOR = 15.0
"""Seconds that a server that has answered before may take to restart."""
REDIAL_PAUSE = 0.1
READ_TIMEOUT = 60.0
MOST_OF_A_NAME = 200


class RemoteProvider(
    Provider, Deadlines, Leases, Resizable, Stoppable, Pausable, Snapshots, Archivable, Portable, Volumes, Templates
):
    """Sandboxes of the server at `url`; without one, of SKERRY_URL or of what `skerry login` stored."""

    name = "remote"
    encrypts = True
    on_timeout = frozenset({"stop", "destroy"})  # no provider behind a server can do more

    def __init__(self, url: str | None = None, *, api_key: str | None = None, project: str | None = None) -> None:
        """Raises Unauthenticated if no server is known, InvalidArgument for an invalid URL."""
        self.login: Login = find_login(url, api_key, project)
        self._start_anew()
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        """For a forked child: it has none of the threads, and must not use the connections."""
        self._client = Client(self.login)
        self._reading = ThreadPoolExecutor(32, "skerry-remote-read")
        self._changing = ThreadPoolExecutor(64, "skerry-remote")
        self._holder = Holder(lambda: self._client)

    def close(self) -> None:
        """Close the connections kept for another request. What is leased to this process ends."""
        self._holder.close()
        self._client.close()

    # -- requests

    async def _read(self, path: str, kind: type[T], **params: str) -> T:
        request = Request(method="GET", path=path, params=params, timeout=READ_TIMEOUT)
        return await abandonable(self._reading, lambda: _decode(kind, self._client.send(request)))

    async def _change(
        self, method: str, path: str, kind: type[T], json: Any = None, params: Mapping[str, str] | None = None
    ) -> T:
        request = Request(method=method, path=path, params=self._params() | dict(params or {}), json=json)
        return await to_the_end(self._changing, lambda: _decode(kind, self._client.send(request)))

    async def _verb(self, sandbox_id: str, verb: str, json: Any = None) -> SandboxInfo:
        return _mine(await self._change("POST", f"{_sandbox(sandbox_id)}/{verb}", SandboxInfo, json or {}))

    def _params(self) -> dict[str, str]:
        return {} if self.login.project is None else {"project": self.login.project}

    async def _made(self, request: Request, undo: Callable[[Any], Request]) -> Any:
        """Make something by a request; if no caller will ever learn of it, remove it again."""
        made: list[Any] = []
        try:
            await to_the_end(self._changing, lambda: made.append(self._client.send(request)))
        except asyncio.CancelledError:
            for answer in made:
                with suppress(SkerryError):  # a cancelled caller gets only its cancellation
                    await to_the_end(self._changing, partial(self._client.send, undo(answer)))
            raise
        return made[0]

    # -- Provider

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        params = self._params()
        if spec.leased:
            params |= {"holder": self._holder.name, "process": str(os.getpid())}
        request = Request(method="POST", path="/v1/provider/sandboxes", params=params, json=spec, headers=idempotent())
        answer = await self._made(request, lambda made: Request(method="DELETE", path=_sandbox(made["id"])))
        info = _mine(_decode(SandboxInfo, answer))
        if spec.leased:
            self._holder.hold(info.id)
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.find(sandbox_id)
        if info.id != sandbox_id:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")  # only one with that name
        return info

    async def find(self, id_or_name: str) -> SandboxInfo:
        return _mine(await self._read(_sandbox(id_or_name), SandboxInfo))

    async def list(self) -> Sequence[SandboxInfo]:
        found = await self._read("/v1/provider/sandboxes", tuple[SandboxInfo, ...], **self._params())
        return [_mine(info) for info in found]

    async def destroy(self, sandbox_id: str) -> None:
        try:
            await self._change("DELETE", _sandbox(sandbox_id), object)
        except SandboxNotFound:
            pass
        self._holder.drop(sandbox_id)

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        if port != AGENT_PORT:
            raise Unsupported("the remote provider opens only the agent's channel", option="port")
        stream = await self._connect(f"{_sandbox(sandbox_id).replace('/provider', '')}/wire", SUBPROTOCOL)
        try:
            return await greeted(stream)
        except BaseException:
            await stream.aclose()
            raise

    async def _connect(self, path: str, subprotocol: str | None = None) -> WebSocketStream:
        """A WebSocket. If a server that has answered before does not answer now, wait for it to restart."""
        end = time.monotonic() + (REDIAL_FOR if self._client.known else 0.0)
        while True:
            try:
                stream = await connect_websocket(self.login, path, subprotocol=subprotocol)
            except ConnectionLost:
                if time.monotonic() >= end:
                    raise
                await anyio.sleep(REDIAL_PAUSE)
            else:
                self._client.known = True
                return stream

    async def usage(self, sandbox_id: str) -> Usage:
        return await self._read(f"{_sandbox(sandbox_id)}/usage", Usage)

    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        found = await self._read(f"{_sandbox(sandbox_id)}/events", tuple[Event, ...], since=str(since))
        return list(found)

    async def sweep(self) -> Sequence[str]:
        return await self._change("POST", "/v1/provider/sweep", list[str], {})

    # -- the capabilities

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        return await self._verb(sandbox_id, "deadline", {"seconds": seconds})

    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        lease = {"held": held, "holder": self._holder.name, "process": os.getpid()}
        await self._change("POST", f"{_sandbox(sandbox_id)}/lease", object, lease)
        (self._holder.hold if held else self._holder.drop)(sandbox_id)

    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        return await self._verb(sandbox_id, "limits", resources)

    async def stop(self, sandbox_id: str, *, grace: float) -> SandboxInfo:
        return await self._verb(sandbox_id, "stop", {"grace": grace})

    async def start(self, sandbox_id: str) -> SandboxInfo:
        return await self._verb(sandbox_id, "start")

    async def restart(self, sandbox_id: str, changes: Changes, *, grace: float) -> SandboxInfo:
        return await self._verb(sandbox_id, "restart", {"changes": changes, "grace": grace})

    async def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        return await self._verb(sandbox_id, "reset", {"hard": hard})

    async def recover(self, sandbox_id: str) -> SandboxInfo:
        return await self._verb(sandbox_id, "recover")

    async def pause(self, sandbox_id: str) -> SandboxInfo:
        return await self._verb(sandbox_id, "pause")

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        return await self._verb(sandbox_id, "resume")

    async def archive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        return await self._verb(sandbox_id, "archive", {"key": key})

    async def unarchive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        return await self._verb(sandbox_id, "unarchive", {"key": key})

    async def create_snapshot(
        self, sandbox_id: str, *, name: str | None, description: str, hidden: bool = False
    ) -> SnapshotInfo:
        json = {"name": name, "description": description, "hidden": hidden}
        if hidden:
            json["holder"] = self._holder.name
        request = Request(method="POST", path=f"{_sandbox(sandbox_id)}/snapshots", json=json)
        answer = await self._made(request, lambda made: Request(method="DELETE", path=_snapshot(made["id"])))
        info: SnapshotInfo = _decode(SnapshotInfo, answer)
        if hidden:
            self._holder.hold(info.id)
        return info

    async def list_snapshots(self, sandbox_id: str | None = None) -> Sequence[SnapshotInfo]:
        params = self._params() if sandbox_id is None else {"sandbox": sandbox_id}
        return list(await self._read("/v1/provider/snapshots", tuple[SnapshotInfo, ...], **params))

    async def find_snapshot(self, id_or_name: str) -> SnapshotInfo:
        return await self._read(_snapshot(id_or_name), SnapshotInfo)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._change("DELETE", _snapshot(snapshot_id), object)
        self._holder.drop(snapshot_id)

    async def restore_snapshot(self, sandbox_id: str, snapshot_id: str) -> SandboxInfo:
        return await self._verb(sandbox_id, "restore", {"snapshot": snapshot_id})

    async def export_state(
        self, source_id: str, target: BinaryIO, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> ExportInfo:
        path = f"{_snapshot(source_id) if is_snapshot_id(source_id) else _sandbox(source_id)}/state"
        stop = Stop(on_progress)
        return await to_the_end(
            self._changing,
            lambda: export.export_state(self._client, path, stop.around(target), key, stop.tell),
            stop.ask,
        )

    async def import_state(
        self, source: BinaryIO, spec: SandboxSpec, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> SandboxInfo:
        params = self._params()
        if spec.leased:
            params |= {"holder": self._holder.name, "process": str(os.getpid())}
        stop = Stop(on_progress)
        made: list[SandboxInfo] = []

        def work() -> None:
            made.append(export.import_state(self._client, "/v1/provider/states", source, spec, key, stop.tell, params))

        try:
            await to_the_end(self._changing, work, stop.ask)
        except asyncio.CancelledError:
            for info in made:  # no caller will ever learn of it
                with suppress(SkerryError):
                    await self.destroy(info.id)
            raise
        if spec.leased:
            self._holder.hold(made[0].id)
        return _mine(made[0])

    async def create_volume(
        self, name: str, *, size: int | None, temporary: bool, encrypted: bool = False
    ) -> VolumeInfo:
        json = {"name": name, "size": size, "temporary": temporary, "encrypted": encrypted}
        return await self._change("POST", "/v1/provider/volumes", VolumeInfo, json)

    async def get_volume(self, name: str) -> VolumeInfo:
        return await self._read(_volume(name), VolumeInfo, **self._params())

    async def list_volumes(self) -> Sequence[VolumeInfo]:
        return list(await self._read("/v1/provider/volumes", tuple[VolumeInfo, ...], **self._params()))

    async def delete_volume(self, name: str) -> None:
        await self._change("DELETE", _volume(name), object)

    async def find_template(self, which: str) -> BuiltTemplate:
        return await self._read(f"/v1/provider/templates/{quote(which, safe='')}", BuiltTemplate)

    async def list_templates(self) -> Sequence[BuiltTemplate]:
        return list(await self._read("/v1/provider/templates", tuple[BuiltTemplate, ...]))

    async def remove_template(self, template_id: str, *, later: bool = False) -> None:
        path = f"/v1/provider/templates/{quote(template_id, safe='')}"
        await self._change("DELETE", path, object, params={"later": "true"} if later else None)

    async def has_layer(self, digest: str) -> bool:
        return await self._read(f"/v1/provider/layers/{quote(digest, safe='')}", bool)

    @asynccontextmanager
    async def building(self, digest: str) -> AsyncIterator[None]:
        stream = await self._connect(f"/v1/provider/layers/{quote(digest, safe='')}/building")
        try:
            try:
                await stream.receive(1)  # a byte comes when it is our turn; until then others build
            except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
                raise ConnectionLost("the server ended while this client waited for another's build") from error
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def commit_layer(self, sandbox_id: str, digest: str, *, directory: str | None = None) -> None:
        json = {"digest": digest, "directory": directory}
        await self._change("POST", f"{_sandbox(sandbox_id)}/commit", object, json)
        self._holder.drop(sandbox_id)

    async def add_template(self, info: BuiltTemplate) -> BuiltTemplate:
        return await self._change("POST", "/v1/provider/templates", BuiltTemplate, info)


def _decode(kind: Any, value: Any) -> Any:
    """Raises Corrupted for an answer of another shape."""
    if kind is object:
        return value
    try:
        return from_plain(kind, value, strict=False)
    except SkerryError as error:
        raise Corrupted(f"the server's answer makes no sense: {error}") from error


def _mine(info: SandboxInfo) -> SandboxInfo:
    return replace(info, provider=RemoteProvider.name)


def _sandbox(which: str) -> str:
    return _path("sandboxes", "sandbox", which, SandboxNotFound)


def _snapshot(which: str) -> str:
    return _path("snapshots", "snapshot", which, SnapshotNotFound)


def _volume(name: str) -> str:
    return _path("volumes", "volume", name, VolumeNotFound)


def _path(kind: str, what: str, which: str, missing: type[SkerryError]) -> str:
    """The path of a resource. Raises `missing` for what cannot be an id or a name: it would lead to another path."""
    if not which or "/" in which or which in (".", "..") or len(which) > MOST_OF_A_NAME:
        raise missing(f"there is no {what} {which[:200]!r}")
    return f"/v1/provider/{kind}/{quote(which, safe='')}"
