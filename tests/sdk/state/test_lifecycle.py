"""What stopping, starting and freezing mean for a client: its connections, forwards, terminals and leases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import AsyncSandbox, ConnectionLost, Event, Sandbox, SandboxFailed, SandboxStopped, State, Unsupported
from skerry.core import registry
from skerry.providers.local import LocalProvider
from tests.sdk.fake_agent import FakeProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(timeout=600)
    yield made
    await made.destroy()


@pytest.mark.parametrize("operation", ["stop", "start", "restart", "reset", "recover", "pause", "resume"])
async def test_a_provider_that_cannot_is_not_asked(operation: str, fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake)
    with pytest.raises(Unsupported) as caught:
        await getattr(sandbox, operation)()
    assert caught.value.option == operation
    with pytest.raises(Unsupported):
        await sandbox.destroy(graceful=True)
    assert sandbox.id in fake.sandboxes
    await sandbox.destroy()


async def test_a_silent_agent_is_given_up_unless_its_sandbox_is_paused(sandbox: AsyncSandbox) -> None:
    sandbox._link._ping_after, sandbox._link._lost_after = 0.1, 0.3
    other = await AsyncSandbox.get(sandbox.id)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sandbox.exec("echo > ready; sleep 0.5; echo done"))
        while not await other.files.exists("ready"):
            await asyncio.sleep(0.01)
        await other.pause()
        await asyncio.sleep(1.5)  # several times what a silent agent is given
        assert not running.done()
        await other.resume()
    assert running.result().stdout == "done\n"
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    provider.engine.cgroups.freeze(sandbox.id)  # by nobody that the provider knows of
    try:
        with anyio.fail_after(30), pytest.raises(ConnectionLost, match="has not answered"):
            await sandbox.exec("true")
    finally:
        provider.engine.cgroups.thaw(sandbox.id)
    await other.close()


async def test_a_stop_ends_forwards_so_that_nobody_starts_it_by_accident(sandbox: AsyncSandbox) -> None:
    await sandbox.processes.spawn("exec python3 -m http.server 8000")
    await sandbox.ports.wait(8000, timeout=30)
    forward = await sandbox.ports.forward(8000)
    stream = await anyio.connect_tcp(forward.host, forward.local_port)
    await sandbox.stop()
    with contextlib.suppress(anyio.BrokenResourceError), pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.aclose()
    with pytest.raises(OSError):
        await anyio.connect_tcp(forward.host, forward.local_port)
    assert (await sandbox.info()).state is State.STOPPED


@pytest.mark.parametrize("grace", [0.0, 20.0])
async def test_a_terminal_that_is_followed_ends_with_the_stop(sandbox: AsyncSandbox, grace: float) -> None:
    terminal = await sandbox.terminals.create(command="echo shown; exec sleep 600")
    shown = asyncio.Event()

    async def follow() -> None:
        async with terminal.attach() as stream:
            async for chunk in stream:
                if b"shown" in chunk.data:
                    shown.set()

    following = asyncio.create_task(follow())
    await shown.wait()
    other = await AsyncSandbox.get(sandbox.id)
    await other.stop(timeout=grace)
    if grace:
        await following  # the program was hung up, and its end is told
    else:
        with pytest.raises(SandboxStopped):
            await following
    assert (await sandbox.info()).state is State.STOPPED


async def test_entering_a_stopped_sandbox_that_was_found_starts_nothing_before_it_is_used(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.files.write("kept", b"data")
    await sandbox.stop()
    async with await AsyncSandbox.get(sandbox.id, auto_start=False):
        pass
    assert (await sandbox.info()).state is State.STOPPED
    async with await AsyncSandbox.get(sandbox.id) as entered:
        assert (await sandbox.info()).state is State.STOPPED
        assert await entered.files.read("kept") == b"data"
    assert (await sandbox.info()).state is State.RUNNING


async def test_entering_a_stopped_sandbox_that_was_made_starts_it_or_leaves_it_alone() -> None:
    made = await AsyncSandbox.create(auto_start=False)
    await made.stop()
    with pytest.raises(SandboxStopped):
        async with made:
            pass
    assert (await made.info()).state is State.STOPPED
    await made.start()
    async with made:
        assert (await made.info()).leased_to is not None


async def test_health_of_a_stopped_sandbox_says_so_and_starts_nothing(sandbox: AsyncSandbox) -> None:
    await sandbox.stop()
    report = await sandbox.health_check({"own": "true"})
    assert not report.healthy
    assert {health.reason for health in report.checks.values()} == {"the sandbox is stopped"}
    assert "own" in report.checks
    assert (await sandbox.info()).state is State.STOPPED
    assert "Working directory" in await sandbox.instructions()  # that needs a look inside
    assert (await sandbox.info()).state is State.RUNNING


async def test_a_command_of_a_sandbox_that_fails_is_told_so_and_goes_on_after_recover(sandbox: AsyncSandbox) -> None:
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    init = provider.engine.store.read(sandbox.id).init
    assert init is not None
    init.kill(30)
    with pytest.raises(SandboxFailed):
        await sandbox.exec("true")
    await sandbox.recover()
    assert (await sandbox.exec("echo on")).stdout == "on\n"


async def test_an_error_tells_its_type_its_reason_and_what_was_running_and_once(sandbox: AsyncSandbox) -> None:
    """A handler can decide what to do: reconnect, recover, restart with more memory."""
    provider = registry.provider("local")
    assert isinstance(provider, LocalProvider)
    seen: list[Event] = []
    sandbox.on("error", seen.append)
    init = provider.engine.store.read(sandbox.id).init
    assert init is not None

    async def work(command: str) -> None:
        with pytest.raises(SandboxFailed):
            await sandbox.exec(command)

    async with anyio.create_task_group() as group:
        for command in ("echo > one; exec sleep 600", "echo > two; exec sleep 600"):
            group.start_soon(work, command)
        for name in ("one", "two"):
            while not await sandbox.files.exists(name):
                await anyio.sleep(0.01)
        init.kill(30)
    await anyio.sleep(2.5)  # the provider was asked twice since
    assert len(seen) == 1
    data = seen[0].data
    assert (data["type"], data["reason"]) == ("connection-lost", "its first process was killed")
    assert "sleep 600" in data["running"]
    stored = [event for event in await provider.events(sandbox.id) if event.type == "error"]
    assert [event.data for event in stored] == [
        {"type": "connection-lost", "code": "SANDBOX_FAILED", "reason": "its first process was killed"}
    ]
    await sandbox.recover()
    assert (await sandbox.exec("true")).ok
    init = provider.engine.store.read(sandbox.id).init
    assert init is not None
    init.kill(30)  # nothing is under way: what is told is what the provider has noted
    assert (await sandbox.info()).state is State.FAILED
    with anyio.fail_after(10):
        while len(seen) < 2:
            await anyio.sleep(0.01)
    assert seen[1].data["type"] == "connection-lost"


async def test_a_command_that_is_killed_for_want_of_memory_is_an_error_with_that_type() -> None:
    seen: list[Event] = []
    async with await AsyncSandbox.create(resources={"memory": "100MB"}, on_event=seen.append) as sandbox:
        await sandbox.exec(["python3", "-c", "x = bytearray(10**9)"])
        with anyio.fail_after(10):
            while not (errors := [event.data for event in seen if event.type == "error"]):
                await anyio.sleep(0.01)
    assert [(data["type"], data["code"]) for data in errors] == [("out-of-memory", "OUT_OF_MEMORY")]
    assert "bytearray" in errors[0]["running"]


async def test_secrets_are_in_commands_and_nowhere_else() -> None:
    async with await AsyncSandbox.create(secrets={"KEY": "s3cret-value"}, env={"A": "1"}) as sandbox:
        assert (await sandbox.exec("echo $KEY")).stdout == "s3cret-value\n"
        info = await sandbox.stop()
        assert "s3cret-value" not in repr(info)
        assert info.env_names == ("A", "KEY")
        provider = registry.provider("local")
        assert isinstance(provider, LocalProvider)
        record = provider.engine.store.read(sandbox.id)
        assert "KEY" not in (record.env or {})
        assert (await sandbox.exec("echo $KEY")).stdout == "s3cret-value\n"


def test_the_blocking_api_has_all_of_it() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("kept", b"data")
        assert sandbox.stop().state is State.STOPPED
        assert sandbox.start().state is State.RUNNING
        assert sandbox.pause().state is State.PAUSED
        assert sandbox.resume().state is State.RUNNING
        assert sandbox.restart(env={"A": "1"}).state is State.RUNNING
        assert sandbox.exec("cat kept; echo $A").stdout == "data1\n"
        assert sandbox.reset(hard=True).state is State.RUNNING
        assert not sandbox.files.exists("kept")
        sandbox.destroy(graceful=True, timeout=5)
