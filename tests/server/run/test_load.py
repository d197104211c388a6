"""Many clients at once on one server: no error, and nothing is left when they are gone."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from skerry.providers.remote import RemoteProvider
from skerry.sdk import AsyncSandbox
from tests.server.separate import Separate

SOAK = bool(os.environ.get("SOAK"))
SECONDS = float(os.environ.get("SKERRY_LOAD_SECONDS", "300" if SOAK else "5"))
CLIENTS = int(os.environ.get("SKERRY_LOAD_CLIENTS", "100" if SOAK else "8"))
CONTENT = os.urandom(100_000)


class Client:
    """One that creates, runs, writes, reads and destroys, again and again; each step is timed."""

    def __init__(self, number: int, server: Separate, took: dict[str, list[float]]) -> None:
        self._number, self._took = number, took
        self._provider = RemoteProvider(server.url, api_key=server.key)

    async def run(self, until: float) -> None:
        try:
            while time.monotonic() < until:
                await self._round()
        finally:
            self._provider.close()

    async def _round(self) -> None:
        box = await self._timed("create", lambda: AsyncSandbox.create(self._provider, timeout=900))
        try:
            result = await self._timed("run", lambda: box.exec(["echo", str(self._number)]))
            assert (result.stdout, result.exit_code) == (f"{self._number}\n", 0)
            await self._timed("write", lambda: box.files.write("data", CONTENT))
            assert await self._timed("read", lambda: box.files.read("data")) == CONTENT
        finally:
            await self._timed("destroy", box.destroy)

    async def _timed(self, what: str, call: Callable[[], Awaitable[object]]) -> object:
        began = time.perf_counter()
        result = await call()
        self._took[what].append(time.perf_counter() - began)
        return result


def open_files(server: Separate) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(SECONDS + 300)
async def test_many_clients_make_no_error_and_leave_nothing(skerry_home: Path) -> None:
    server = await anyio.to_thread.run_sync(Separate, skerry_home.parent / "load")
    provider = RemoteProvider(server.url, api_key=server.key)
    took: dict[str, list[float]] = defaultdict(list)
    try:
        async with await AsyncSandbox.create(provider) as first:  # what the first one makes for all is there then
            await first.exec("true")
        files, memory, until = open_files(server), server.memory, time.monotonic() + SECONDS
        async with anyio.create_task_group() as group:
            for number in range(CLIENTS):
                group.start_soon(Client(number, server, took).run, until)
        assert await provider.list() == []
        with anyio.fail_after(60):
            while open_files(server) > files + 5:  # connections that wait for their next request end by themselves
                await anyio.sleep(0.2)
        grown = server.memory - memory
        left = list((server.home / "sandboxes").iterdir())
    finally:
        provider.close()
        await anyio.to_thread.run_sync(server.stop)
    print(
        f"\n{CLIENTS} clients, {SECONDS:g} s, {len(took['create'])} sandboxes, 0 errors; server +{grown / 1e6:.0f} MB"
    )
    for what, times in took.items():
        times.sort()
        middle, last = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"  {what:8} {len(times):6} calls  p50 {middle * 1000:8.1f} ms  p99 {last * 1000:8.1f} ms")
    assert len(took["destroy"]) == len(took["create"]) >= CLIENTS
    assert left == []
