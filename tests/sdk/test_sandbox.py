"""The life of a sandbox object."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import anyio
import pytest

import skerry
from skerry import AsyncForkResult, AsyncSandbox, Sandbox, SandboxNotFound, SandboxStopped, State, Unsupported
from skerry.core.contract.provider import Deadlines, Leases, Provider, Resizable
from skerry.wire import Life, LifeReply, Type
from tests.sdk.fake_agent import Connection, FakeProvider, reply


async def test_with_leases_and_destroys(fake: FakeProvider) -> None:
    lives: list[Life] = []

    async def script(connection: Connection) -> None:
        await connection.greet()
        while True:
            frame = await connection.frame(Type.LIFE)
            lives.append(Life.decode(frame.payload))
            await connection.raw(reply(frame.stream, LifeReply(remaining_ms=-1, leased=1, uptime_ms=1)))

    fake.script = script
    async with await AsyncSandbox.create(fake) as sandbox:
        assert fake.leased == [sandbox.id]
        assert lives == [Life(lease=1)]
    assert not fake.sandboxes


async def test_with_destroys_when_the_body_raises(fake: FakeProvider) -> None:
    with pytest.raises(KeyError):
        async with await AsyncSandbox.create(fake):
            raise KeyError
    assert not fake.sandboxes


async def test_with_destroys_when_it_is_cancelled(fake: FakeProvider) -> None:
    with anyio.move_on_after(0.1):
        async with await AsyncSandbox.create(fake):
            await anyio.sleep(60)
    assert not fake.sandboxes


async def test_with_destroys_when_the_lease_cannot_be_had(fake: FakeProvider) -> None:
    async def script(connection: Connection) -> None:
        await connection.greet()

    fake.script = script
    with pytest.raises(skerry.ConnectionLost):
        async with await AsyncSandbox.create(fake):
            pass
    assert not fake.sandboxes


async def test_a_destroyed_sandbox_is_not_found(fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake)
    await sandbox.exec("true")
    await sandbox.destroy()
    await sandbox.destroy()
    for call in (sandbox.exec("true"), sandbox.info(), sandbox.files.read("x"), sandbox.env.all()):
        with pytest.raises(SandboxNotFound):
            await call
    assert not await sandbox.is_ready()


async def test_close_leaves_the_sandbox(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    await sandbox.exec("true")
    await sandbox.close()
    assert sandbox.id in fake.sandboxes
    assert (await sandbox.exec("x")).stdout == "x"


async def test_connect_get_and_find(fake: FakeProvider) -> None:
    made = await AsyncSandbox.create(fake, name="box")
    for found in (
        await AsyncSandbox.connect("box", provider=fake),
        await AsyncSandbox.connect(made.id, provider=fake),
        await AsyncSandbox.get(made.id, provider=fake),
        await AsyncSandbox.find("box", provider=fake),
    ):
        assert found.id == made.id
        assert (await found.exec("x")).stdout == "x"
        await found.close()
    for call in (AsyncSandbox.connect, AsyncSandbox.get, AsyncSandbox.find):
        with pytest.raises(SandboxNotFound):
            await call("nobody", provider=fake)


async def test_status_usage_and_readiness(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    status = await sandbox.status()
    assert status.state is State.RUNNING
    assert status.uptime >= 0
    usage = await sandbox.usage()
    assert (usage.disk_used, usage.disk_total, usage.network_rx, usage.network_tx) == (10, 1000, 5, 6)
    assert (usage.memory_used, usage.cpu_seconds) == (3, 2.0)
    assert await sandbox.is_ready()


async def test_a_provider_without_a_capability_says_so() -> None:
    bare = type("Bare", (Provider,), {k: v for k, v in vars(FakeProvider).items() if not k.startswith("record")})
    provider = bare()
    assert not isinstance(provider, Deadlines | Leases | Resizable)
    sandbox = await AsyncSandbox.create(provider)
    with pytest.raises(Unsupported):
        await sandbox.set_timeout(10)
    with pytest.raises(Unsupported):
        await sandbox.set_limits(cpu=1)
    async with sandbox:
        pass
    assert not provider.sandboxes


async def test_code_in_another_language_is_unsupported(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    with pytest.raises(Unsupported):
        await sandbox.code_run("x", language="cobol")
    assert fake.dials == 0


def test_import_is_quick_and_lazy() -> None:
    script = "import sys, skerry; print('asyncio' in sys.modules, 'anyio' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_every_public_name_is_there() -> None:
    for name in skerry.__all__:
        assert getattr(skerry, name) is not None
    assert dir(skerry) == sorted(skerry.__all__)
    with pytest.raises(AttributeError):
        skerry.nothing  # noqa: B018


async def test_a_passive_object_shares_the_connection_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await AsyncSandbox.create() as sandbox:
        provider, dials = sandbox._provider, list[str]()
        dial = provider.dial

        async def counted(sandbox_id: str) -> Any:
            dials.append(sandbox_id)
            return await dial(sandbox_id)

        monkeypatch.setattr(provider, "dial", counted)
        assert (await sandbox.exec("echo one")).ok and (await sandbox.passive().exec("echo two")).ok
        assert dials == []  # entering the block has opened it
        await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await sandbox.passive().exec("true")
        assert (await sandbox.info()).state is State.STOPPED


async def test_a_wrong_name_gets_the_nearest_that_this_caller_can_list(fake: FakeProvider) -> None:
    await AsyncSandbox.create(fake, name="precious")
    with pytest.raises(SandboxNotFound) as caught:
        await AsyncSandbox.connect("precius", provider=fake)
    assert caught.value.hint == "did you mean 'precious'? Sandbox.list() has those that exist"
    with pytest.raises(SandboxNotFound) as caught:
        await AsyncSandbox.get("precious", provider=fake)
    assert caught.value.hint == "get() takes an id; find() and connect() take a name too"
    with pytest.raises(SandboxNotFound) as caught:
        await AsyncSandbox.find("unlike", provider=fake)
    assert caught.value.hint == SandboxNotFound.hint


async def test_a_repr_has_ids_and_neither_secrets_nor_questions_to_the_provider(fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake, name="box", env={"A": "s3cret"}, secrets={"B": "s3cret"})
    asked = fake.dials
    parts = [
        sandbox,
        sandbox.files,
        sandbox.processes,
        sandbox.git,
        sandbox.ports,
        AsyncForkResult(sandbox),
        sandbox.env,
    ]
    shown = [repr(part) for part in parts]
    assert shown[0] == f"<AsyncSandbox {sandbox.id} 'box' running on fake>"
    assert all(sandbox.id in text and "s3cret" not in text and " at 0x" not in text for text in shown)
    assert fake.dials == asked
    await sandbox.destroy()
    assert repr(sandbox) == f"<AsyncSandbox {sandbox.id} 'box' destroyed on fake>"
    blocking = Sandbox.create(fake, name="box")
    assert repr(blocking) == f"<Sandbox {blocking.id} 'box' running on fake>"
    blocking.destroy()


async def test_create_is_entered_without_await_and_still_a_coroutine(fake: FakeProvider) -> None:
    async with AsyncSandbox.create(fake, name="box") as sandbox:
        assert isinstance(sandbox, AsyncSandbox) and fake.leased == [sandbox.id]
    assert not fake.sandboxes
    made = await asyncio.create_task(AsyncSandbox.create(fake))
    async with anyio.create_task_group() as group:
        group.start_soon(AsyncSandbox.create, fake)
    assert len(fake.sandboxes) == 2
    await made.destroy()
