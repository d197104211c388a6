"""Events: stored ones replay, our own join them, and a callback's failure is only logged."""

from __future__ import annotations

import anyio
import pytest

from skerry import AsyncSandbox, Event, InvalidArgument
from tests.sdk.fake_agent import FakeProvider, polite


async def until(condition: object) -> None:
    with anyio.fail_after(5):
        while not condition():  # type: ignore[operator]
            await anyio.sleep(0.01)


async def test_create_with_on_event_sees_all(fake: FakeProvider) -> None:
    seen: list[str] = []
    sandbox = await AsyncSandbox.create(fake, on_event=lambda event: seen.append(event.type))
    await sandbox.exec("true")
    await sandbox.destroy()
    assert seen == ["created", "ready", "connected", "destroyed"]


async def test_a_late_handler_still_sees_created(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    await sandbox.exec("true")
    seen: list[Event] = []
    sandbox.on("created", seen.append)
    await until(lambda: seen)
    assert seen[0].sandbox_id == sandbox.id
    assert seen[0].cursor == 1


async def test_a_coroutine_may_handle_events(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    seen: list[str] = []

    async def handle(event: Event) -> None:
        await anyio.sleep(0)
        seen.append(event.type)

    sandbox.on("ready", handle)
    await until(lambda: seen == ["ready"])


async def test_a_handler_that_raises_is_logged_and_gets_the_next(
    fake: FakeProvider, sandbox: AsyncSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def explode(event: Event) -> None:
        seen.append(event.type)
        raise KeyError("mine")

    sandbox.on("*", explode)
    await until(lambda: seen == ["created", "ready"])
    assert "callback" in caplog.text


async def test_unsubscribing_ends_it(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    seen: list[str] = []
    unsubscribe = sandbox.on("*", lambda event: seen.append(event.type))
    await until(lambda: len(seen) == 2)
    unsubscribe()
    await anyio.sleep(0)
    await sandbox.exec("true")
    await anyio.sleep(0.05)
    assert seen == ["created", "ready"]


async def test_a_lost_connection_is_seen_and_the_way_back(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    seen: list[str] = []
    sandbox.on("*", lambda event: seen.append(event.type))
    await sandbox.exec("true")
    await fake.aclose()
    await until(lambda: "disconnected" in seen)
    fake.script = polite
    await sandbox.exec("true")
    await until(lambda: len(seen) == 6)
    assert seen == ["created", "ready", "connected", "disconnected", "reconnecting", "connected"]


async def test_events_replay_from_a_cursor_and_end_with_destroyed(fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake)
    seen: list[str] = []
    async with anyio.create_task_group() as group:

        async def follow() -> None:
            async for event in sandbox.events(since=1):
                seen.append(event.type)  # noqa: PERF401

        group.start_soon(follow)
        await until(lambda: seen == ["ready"])
        fake.store(sandbox.id, "paused")
        await until(lambda: seen == ["ready", "paused"])
        await sandbox.destroy()
    assert seen == ["ready", "paused", "destroyed"]


async def test_a_sandbox_that_another_client_destroys_ends_the_events(fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake)
    seen: list[str] = []
    with anyio.fail_after(5):
        async for event in sandbox.events():
            seen.append(event.type)
            if event.type == "ready":
                del fake.sandboxes[sandbox.id]
    assert seen == ["created", "ready", "destroyed"]


async def test_an_unknown_event_is_refused_with_the_nearest(fake: FakeProvider, sandbox: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument) as caught:
        sandbox.on("create", print)  # type: ignore[arg-type]
    assert "'created'" in caught.value.hint


async def test_a_handler_may_destroy_the_sandbox(fake: FakeProvider) -> None:
    sandbox = await AsyncSandbox.create(fake)

    async def destroy(event: Event) -> None:
        await sandbox.destroy()

    sandbox.on("ready", destroy)
    await until(lambda: not fake.sandboxes)
