"""What the remote provider promises beyond the suite: nothing is left half made, and keys stay on this side."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from skerry.core.errors import (
    Conflict,
    ConnectionLost,
    InvalidArgument,
    PermissionDenied,
    QuotaExceeded,
    SandboxNotFound,
    SnapshotNotFound,
    Unauthenticated,
)
from skerry.core.models import Resources, SandboxSpec, VolumeMount
from skerry.http import Client, Request
from skerry.http.websocket import WebSocketStream
from skerry.providers.remote import RemoteProvider
from skerry.sdk import AsyncSandbox, AsyncVolumes
from skerry.server.access.permissions import Role
from skerry.server.run.certificates import local_certificates
from tests.server.conftest import Running

pytestmark = pytest.mark.anyio
KEY = b"k" * 32


@pytest.fixture(scope="module")
def provider(server: Running) -> RemoteProvider:
    return RemoteProvider(server.url, api_key=server.key("far"))


@pytest.fixture
async def box(provider: RemoteProvider) -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(provider)
    yield made
    await made.destroy()


async def test_a_create_that_is_cancelled_leaves_nothing(provider: RemoteProvider) -> None:
    for delay in (0.0, 0.005, 0.02, 0.05):
        task = asyncio.create_task(provider.create(SandboxSpec()))
        await anyio.sleep(delay)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:  # it was quicker
            await provider.destroy((await task).id)
    assert await provider.list() == []


async def test_a_create_that_is_cancelled_is_cancelled_whatever_becomes_of_what_it_made(
    server: Running, provider: RemoteProvider
) -> None:
    """A member who may not destroy."""
    project = server.project("far")
    server.share(project, "builder", Role.WRITE)
    theirs = RemoteProvider(server.url, api_key=server.key("builder"), project=project.id)
    for delay in (0.0, 0.005, 0.02):
        task = asyncio.create_task(theirs.create(SandboxSpec()))
        await anyio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None, task.exception()
    for info in await provider.list():
        await provider.destroy(info.id)


async def test_a_holder_that_could_be_guessed_is_refused_before_anything_is_made(
    server: Running, provider: RemoteProvider
) -> None:
    request = Request(
        method="POST", path="/v1/provider/sandboxes", params={"holder": "guess"}, json=SandboxSpec(leased=True)
    )
    with Client(provider.login) as client, pytest.raises(InvalidArgument, match="holder"):
        await anyio.to_thread.run_sync(client.send, request)
    assert await provider.list() == []


async def test_a_short_life_is_told_of_from_its_beginning_to_its_end(server: Running, provider: RemoteProvider) -> None:
    for _ in range(4):
        made = await provider.create(SandboxSpec())
        await provider.pause(made.id)
        await provider.destroy(made.id)
        events = [
            event.type for event in server.call(partial(server.context.store.events.after, 0, sandbox_id=made.id))
        ]
        assert events[0] == "created" and events[-2:] == ["paused", "destroyed"], events


async def test_one_damaged_sandbox_keeps_nobody_s_events_back(
    server: Running, provider: RemoteProvider, skerry_home: Path
) -> None:
    damaged = await AsyncSandbox.create(provider)
    other = await AsyncSandbox.create(provider)
    (log,) = skerry_home.glob(f"**/{damaged.id}/events.jsonl")
    with log.open("a") as file:
        file.write("no event\n")
    try:
        for one in (damaged, other):
            await one.pause()

        def told() -> bool:
            return any(
                event.type == "paused"
                for event in server.call(lambda: server.context.store.events.after(0, sandbox_id=other.id))
            )

        with anyio.fail_after(20):
            while not told():
                await anyio.sleep(0.1)
    finally:
        for one in (damaged, other):
            await one.destroy()


async def test_an_import_that_is_cut_short_leaves_nothing(
    server: Running, provider: RemoteProvider, box: AsyncSandbox
) -> None:
    await box.exec("head -c 3000000 /dev/urandom > data", check=True)
    data = await box.export_state()
    assert data is not None

    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 500_000:
                raise RuntimeError("the source is gone")
            return super().read(size)

    with pytest.raises(RuntimeError, match="gone"):
        await AsyncSandbox.create(provider, import_state=Breaks(data))
    with anyio.fail_after(20):
        while {info.id for info in await server.context.providers.default.list()} - {box.id}:
            await anyio.sleep(0.05)
    assert [info.id for info in await provider.list()] == [box.id]


async def test_slow_clients_of_exports_do_not_keep_the_server_from_the_rest(
    server: Running, provider: RemoteProvider, box: AsyncSandbox
) -> None:
    """Each holds a thread of the provider, which all requests share."""
    await box.exec("head -c 30000000 /dev/urandom > data", check=True)
    head = f"GET /v1/provider/sandboxes/{box.id}/state HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Authorization: Bearer {provider.login.key}\r\n\r\n"
    clients = [socket.socket() for _ in range(40)]
    try:
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.settings.port))
            client.sendall(head.encode())
        await anyio.to_thread.run_sync(clients[0].recv, 12)
        await anyio.sleep(5)
        with anyio.fail_after(10):
            assert (await provider.get(box.id)).id == box.id
    finally:
        for client in clients:
            client.close()
    data = await box.export_state()
    assert data is not None and len(data) > 30_000_000


async def test_the_key_of_an_export_never_leaves_this_side(
    provider: RemoteProvider, box: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Request] = []
    for name in ("send", "stream"):
        call = getattr(Client, name)

        def noted(self: Client, request: Request, *args: Any, call: Any = call, **kwargs: Any) -> Any:
            sent.append(request)
            return call(self, request, *args, **kwargs)

        monkeypatch.setattr(Client, name, noted)
    await box.files.write("file", b"content")
    data = await box.export_state(key=KEY)
    assert data is not None and data.startswith(b"\x8dSKERRY\n")
    with pytest.raises(Unauthenticated):
        await AsyncSandbox.create(provider, import_state=data, key=b"o" * 32)
    copy = await AsyncSandbox.create(provider, import_state=data, key=KEY)
    assert await copy.files.read("file") == b"content"
    await copy.destroy()
    assert len(sent) > 3
    assert all(
        b"a2tra2" not in (request.arguments()["content"] or b"") and "kkk" not in repr(request) for request in sent
    )


async def test_one_project_cannot_use_another_s_things(
    server: Running, provider: RemoteProvider, box: AsyncSandbox
) -> None:
    """By a whole specification, which names snapshots, volumes and sandboxes."""
    kept = await box.snapshots.create("kept")
    await AsyncVolumes(provider).create("mine")
    other = RemoteProvider(server.url, api_key=server.key("other-far"))
    for spec, error in (
        (SandboxSpec(snapshot=kept.id), SnapshotNotFound),
        (SandboxSpec(secrets_of=box.id), SandboxNotFound),
        (SandboxSpec(volumes=(VolumeMount(name="mine", path="/m"),)), LookupError),
        (SandboxSpec(labels={"skerry.project": "pj-x"}), InvalidArgument),
        (SandboxSpec(name="../x"), InvalidArgument),
        (SandboxSpec(timeout=10**7), QuotaExceeded),
        (SandboxSpec(resources=Resources(memory=10**14)), QuotaExceeded),
    ):
        with pytest.raises(error):
            await other.create(spec)
    for call in (other.find_snapshot, other.delete_snapshot):
        with pytest.raises(SnapshotNotFound):
            await call(kept.id)
    with pytest.raises(SandboxNotFound):
        await other.restore_snapshot(box.id, kept.id)
    assert (await other.list(), await other.list_snapshots(), await other.list_volumes()) == ([], [], [])
    await AsyncVolumes(provider).delete("mine")
    await box.snapshots.delete(kept)


async def test_a_token_takes_no_snapshots_by_way_of_the_provider_either(
    server: Running, provider: RemoteProvider, box: AsyncSandbox
) -> None:
    tokens = server.context.store.keys
    _, text = await anyio.to_thread.run_sync(
        server.call,
        lambda: tokens.add_token(box.id, server.project("far").id, Role.WRITE, created_by="test", expires_at=None),
    )
    inside = RemoteProvider(server.url, api_key=text)
    assert (await inside.get(box.id)).id == box.id
    for hidden in (False, True):
        with pytest.raises(PermissionDenied):
            await inside.create_snapshot(box.id, name=None, description="", hidden=hidden)


async def test_a_snapshot_that_is_not_theirs_and_who_asked_for_it_is_in_the_audit(
    server: Running, provider: RemoteProvider, box: AsyncSandbox
) -> None:
    kept = await box.snapshots.create()
    other = await AsyncSandbox.create(RemoteProvider(server.url, api_key=server.key("other-far")))
    theirs = RemoteProvider(server.url, api_key=server.key("other-far"))
    with pytest.raises(SnapshotNotFound):
        await theirs.restore_snapshot(other.id, kept.id)
    await other.destroy()
    await box.snapshots.delete(kept)
    found = {
        (entry.actor, entry.action, entry.outcome)
        for entry in server.call(lambda: server.context.store.audit.before(None))
        if entry.target == f"snapshot {kept.id}"
    }
    assert ("user:other-far", "snapshot.write", "SNAPSHOT_NOT_FOUND") in found


async def test_two_projects_use_the_same_names(server: Running, provider: RemoteProvider) -> None:
    other = RemoteProvider(server.url, api_key=server.key("other-far"))
    mine, theirs = [await AsyncSandbox.create(which, name="same") for which in (provider, other)]
    assert mine.name == theirs.name == "same"
    assert (await provider.find("same")).id == mine.id
    assert (await other.find("same")).id == theirs.id
    with pytest.raises(Conflict):
        await AsyncSandbox.create(provider, name="same")
    for one in (mine, theirs):
        await one.destroy()


async def test_only_an_administrator_keeps_layers(server: Running, provider: RemoteProvider, box: AsyncSandbox) -> None:
    """A layer's digest is the word of who built it, and everybody uses layers."""
    with pytest.raises(PermissionDenied):
        await provider.commit_layer(box.id, "0" * 40)
    with pytest.raises(PermissionDenied):
        async with provider.building("0" * 40):
            raise AssertionError
    assert (await box.exec("true")).ok
    assert await provider.has_layer("0" * 40) is False


async def test_a_layer_that_can_be_none_is_refused_and_a_former_administrator_builds_no_more(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    chief, _ = server.user("chief-builder", admin=True), server.user("admin")  # who stays one
    theirs = RemoteProvider(server.url, api_key=server.key("chief-builder"))
    with pytest.raises(InvalidArgument):
        async with theirs.building("no-digest"):
            raise AssertionError
    digest = "b" * 40
    async with theirs.building(digest):
        await anyio.to_thread.run_sync(server.call, lambda: server.context.store.users.change(chief.id, admin=False))
        with anyio.fail_after(20):
            async with server.context.providers.default.building(digest):  # as soon as it is free
                pass
    assert not [record for record in caplog.records if (record.name, record.levelname) == ("skerry.server", "ERROR")]


async def test_a_server_that_is_gone_without_a_word_is_noticed(provider: RemoteProvider, box: AsyncSandbox) -> None:
    """By the connection itself, also where the server has nothing to say for long."""
    channel = await provider.dial(box.id)
    assert isinstance(channel.stream, WebSocketStream)
    transport = channel.stream.protocol._transport
    assert transport is not None
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
    await channel.stream.aclose()


async def test_a_closed_provider_has_no_thread_left(server: Running) -> None:
    import threading

    leased = RemoteProvider(server.url, api_key=server.key("far"))
    box = await AsyncSandbox.create(leased)
    await box.__aenter__()
    assert any(thread.name == "skerry-leases" for thread in threading.enumerate())
    await box.destroy()
    box = await AsyncSandbox.create(leased)
    await box.__aenter__()
    leased.close()
    with anyio.fail_after(20):
        while any(thread.name == "skerry-leases" for thread in threading.enumerate()):
            await anyio.sleep(0.05)
    await RemoteProvider(server.url, api_key=server.key("far")).destroy(box.id)
    await box._link.close()


async def test_over_tls_the_server_is_verified(skerry_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = skerry_home.parent / "tls"
    made = local_certificates(home / "certificates", frozenset({"127.0.0.1"}))
    running = await anyio.to_thread.run_sync(lambda: Running(home, tls_cert=str(made.cert), tls_key=str(made.key)))
    try:
        key = await anyio.to_thread.run_sync(running.key, "secure")
        stranger = RemoteProvider(running.url, api_key=key)
        for call in (stranger.list(), stranger.dial("sb-0000000000")):
            with pytest.raises(ConnectionLost, match="certificate verify failed"):
                await call
        monkeypatch.setenv("SKERRY_CA_FILE", str(made.ca))
        provider = RemoteProvider(running.url, api_key=key)
        async with await AsyncSandbox.create(provider) as box:
            await box.files.write("data", bytes(3_000_000))
            assert await box.files.read("data") == bytes(3_000_000)
        provider.close()
    finally:
        await anyio.to_thread.run_sync(running.stop)
