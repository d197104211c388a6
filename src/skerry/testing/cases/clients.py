"""Clients: several of them, blocking or not, on any event loop, none of which leaks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import anyio
import pytest

from skerry.core import Provider, SandboxNotFound
from skerry.sdk import AsyncSandbox, Sandbox
from skerry.testing.cases.base import Conformance, Fresh, gone


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class ClientsConformance(Conformance):
    """The sandbox object as its users use it."""

    title = "clients"

    async def test_two_clients_use_one_sandbox_at_once(self, sandbox: AsyncSandbox, provider: Provider) -> None:
        """One client's commands and files do not disturb another client's."""
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        results: list[str] = []

        async def run(client: AsyncSandbox, text: str) -> None:
            results.extend([(await client.exec(["echo", text])).stdout for _ in range(10)])

        async with anyio.create_task_group() as group:
            group.start_soon(run, sandbox, "one")
            group.start_soon(run, other, "two")
        assert sorted(results) == ["one\n"] * 10 + ["two\n"] * 10
        await other.close()

    async def test_leaving_the_block_of_one_that_was_found_only_closes_it(
        self, sandbox: AsyncSandbox, provider: Provider
    ) -> None:
        """Looking at another client's sandbox in a `with` must neither destroy it nor tie it to a process."""
        for find in (AsyncSandbox.connect, AsyncSandbox.get, AsyncSandbox.find):
            async with await find(sandbox.id, provider=provider) as found:
                assert (await found.exec("true")).ok
                assert (await found.info()).leased_to is None

        def visit() -> None:
            for find in (Sandbox.connect, Sandbox.get, Sandbox.find):
                with find(sandbox.id, provider=provider) as found:
                    found.exec("true")

        await anyio.to_thread.run_sync(visit)
        assert (await sandbox.exec("echo there")).stdout == "there\n"

    async def test_leaving_the_block_of_one_that_was_made_destroys_it(self, fresh: Fresh, provider: Provider) -> None:
        """A block that made its sandbox leaves nothing behind."""
        async with await fresh() as made:
            assert (await made.exec("true")).ok
        with pytest.raises(SandboxNotFound):
            await provider.get(made.id)

    async def test_close_leaves_the_sandbox_and_the_object_usable(self, sandbox: AsyncSandbox) -> None:
        """A closed object opens a new connection when it is used again."""
        await sandbox.close()
        await sandbox.close()
        assert (await sandbox.exec("echo again")).stdout == "again\n"
        await sandbox.reconnect()

    async def test_clients_that_come_and_go_leave_nothing_open(self, sandbox: AsyncSandbox, provider: Provider) -> None:
        """e2b-dev/E2B#1155: connections must be closed with their clients, or there are too many open files."""

        async def visit() -> None:
            client = await AsyncSandbox.connect(sandbox.id, provider=provider)
            await client.exec("true")
            await client.close()

        await visit()
        before = open_files()
        for _ in range(15):
            await visit()
        assert open_files() <= before + 2

    async def test_a_reader_that_stops_early_leaves_nothing_open(self, sandbox: AsyncSandbox) -> None:
        """Streams that are left before their end do not pile up, here or in the sandbox."""
        await sandbox.exec("true")
        before = open_files()
        pids: list[int] = []
        for _ in range(15):
            async with sandbox.exec_stream(["yes"]) as stream:
                await anext(stream)
                pids.append(stream.pid)
        assert open_files() <= before + 2
        for pid in pids:
            await gone(sandbox, pid)

    def test_blocking_code_needs_no_event_loop(self, provider: Provider, options: dict[str, Any]) -> None:
        """The same sandbox, the same results, without async."""
        with Sandbox.create(provider, **options) as sandbox:
            assert sandbox.exec("echo hello; exit 3").exit_code == 3
            sandbox.files.write("x", b"blocking")
            assert sandbox.files.read("x") == b"blocking"
            with sandbox.exec_stream("seq 3") as stream:
                assert b"".join(chunk.data for chunk in stream) == b"1\n2\n3\n"
        with pytest.raises(SandboxNotFound):
            Sandbox.get(sandbox.id, provider=provider)

    def test_one_object_serves_several_event_loops(self, provider: Provider, options: dict[str, Any]) -> None:
        """nexi-lab/nexus#602: an object made on one event loop must work on another."""
        sandbox = asyncio.run(AsyncSandbox.create(provider, **options))

        async def use(number: int) -> str:
            result = (await sandbox.exec(["echo", str(number)])).stdout
            await sandbox.close()
            return result

        assert [asyncio.run(use(number)) for number in range(3)] == ["0\n", "1\n", "2\n"]
        asyncio.run(sandbox.destroy())

    def test_threads_share_a_blocking_object(self, provider: Provider, options: dict[str, Any]) -> None:
        """Several threads call at once, and each gets its own answer."""
        with Sandbox.create(provider, **options) as sandbox:
            results: dict[int, str] = {}

            def run(number: int) -> None:
                results[number] = sandbox.exec(["echo", str(number)]).stdout

            threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert results == {number: f"{number}\n" for number in range(12)}

    async def test_a_waiting_call_does_not_stop_the_event_loop(self, sandbox: AsyncSandbox) -> None:
        """While a command runs, other tasks of the program run too."""
        longest, last = 0.0, time.monotonic()
        async with anyio.create_task_group() as group:

            async def tick() -> None:
                nonlocal longest, last
                while True:
                    await anyio.sleep(0.01)
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()

            group.start_soon(tick)
            assert (await sandbox.exec("sleep 1.5")).ok
            group.cancel_scope.cancel()
        assert longest < 1.2

    async def test_is_ready_says_no_and_does_not_raise(self, provider: Provider, options: dict[str, Any]) -> None:
        """Asking whether a sandbox is ready has an answer also when it is gone."""
        sandbox = await AsyncSandbox.create(provider, **options)
        assert await sandbox.is_ready()
        await provider.destroy(sandbox.id)
        assert not await sandbox.is_ready()
        await sandbox.destroy()
