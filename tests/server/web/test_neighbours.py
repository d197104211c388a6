"""Whatever one user asks for at once, another one's requests stay quick and the server's memory bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.server.separate import Separate

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.serial]  # they measure how long others wait

STUBBORN = "trap '' TERM; echo > ready; while :; do sleep 0.1; done"
SLOWEST = 1.0
"""Seconds that the neighbour may wait for any answer; on an idle machine an answer takes some milliseconds."""


@pytest.fixture(scope="module")
def apart(skerry_home: Path) -> Iterator[Separate]:
    server = Separate(skerry_home.parent / "neighbours", users=("eve", "bob"))
    yield server
    server.stop()


def client_of(server: Separate, name: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {server.keys[name]}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=200, limits=limits)


@pytest.fixture
async def eve(apart: Separate) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(apart, "eve") as client:
        yield client


@asynccontextmanager
async def sandbox_of(client: httpx2.AsyncClient) -> AsyncIterator[str]:
    made = (await client.post("/v1/sandboxes", json={"timeout": 3600})).raise_for_status().json()["id"]
    try:
        yield f"/v1/sandboxes/{made}"
    finally:
        assert (await client.delete(f"/v1/sandboxes/{made}")).status_code in (204, 404)


async def slowest_while(server: Separate, work: Callable[[], Awaitable[object]]) -> float:
    """The longest that the neighbour waited for a list of his own while `work` went on."""
    slowest = 0.0
    async with client_of(server, "bob") as bob:
        (await bob.get("/v1/sandboxes")).raise_for_status()
        task = asyncio.ensure_future(work())
        while not task.done():
            began = time.perf_counter()
            (await bob.get("/v1/sandboxes")).raise_for_status()
            slowest = max(slowest, time.perf_counter() - began)
            await asyncio.sleep(0.01)
        await task
    print(f"\nthe neighbour waited for {slowest * 1000:.0f} ms at most")
    return slowest


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def stubborn(client: httpx2.AsyncClient, box: str) -> None:
    """Let something run in it that does not end when it is asked to."""
    (await client.post(f"{box}/processes", json={"command": STUBBORN})).raise_for_status()

    async def is_ready() -> bool:
        return (await client.get(f"{box}/files/stat", params={"path": "ready"})).status_code == 200

    await until(is_ready)


async def test_who_waits_for_a_stop_keeps_nobody_else_waiting(apart: Separate, eve: httpx2.AsyncClient) -> None:
    async with sandbox_of(eve) as box:
        await stubborn(eve, box)

        stopped: list[httpx2.Response] = []

        async def work() -> None:
            stopped.extend(await asyncio.gather(*(eve.post(f"{box}/stop", json={"timeout": 5}) for _ in range(36))))

        began = time.monotonic()
        slowest = await slowest_while(apart, work)
        assert time.monotonic() - began >= 5
        assert {answer.status_code for answer in stopped} == {200}
        assert {answer.json()["state"] for answer in stopped} == {"stopped"}
        assert slowest < SLOWEST


async def test_a_destroy_does_not_wait_for_stops_of_the_same_user(apart: Separate, eve: httpx2.AsyncClient) -> None:
    async with sandbox_of(eve) as box:
        await stubborn(eve, box)
        stops = [asyncio.ensure_future(eve.post(f"{box}/stop", json={"timeout": 100})) for _ in range(12)]

        async def is_stopping() -> bool:
            return (await eve.get(box)).json()["state"] == "stopping"

        await until(is_stopping)
        began = time.monotonic()
        (await eve.delete(box)).raise_for_status()
        assert time.monotonic() - began < 20
        assert {answer.status_code for answer in await asyncio.gather(*stops)} <= {200, 404}


async def test_a_grace_has_a_maximum_that_the_refusal_names(eve: httpx2.AsyncClient) -> None:
    async with sandbox_of(eve) as box:
        for refused in (
            await eve.post(f"{box}/stop", json={"timeout": 3600}),
            await eve.post(f"{box}/restart", json={"timeout": 3600}),
            await eve.delete(box, params={"graceful": True, "timeout": 3600}),
            await eve.post(box.replace("/v1/", "/v1/provider/") + "/stop", json={"grace": 3600}),
        ):
            assert refused.status_code == 400 and "120" in refused.text, refused.text
        assert (await eve.get(box)).json()["state"] == "running"


@asynccontextmanager
async def memory_watched(server: Separate, most: int) -> AsyncIterator[None]:
    """What goes on inside lets the server grow by no more than `most` bytes, at any moment."""
    before, grown = server.memory, 0

    async def watch() -> None:
        nonlocal grown
        while True:
            grown = max(grown, server.memory - before)
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
    print(f"\nthe server has grown by {grown / 1e6:.0f} MB")
    assert grown < most


async def test_a_page_of_a_large_directory_costs_a_page(apart: Separate, eve: httpx2.AsyncClient) -> None:
    async with sandbox_of(eve) as box:
        make = "mkdir many && cd many && seq -f %06.0f 100000 | xargs touch"
        assert (await eve.post(f"{box}/exec", json={"command": make})).json()["exit_code"] == 0

        async def pages(limit: int) -> None:
            cursor = "050000"
            for _ in range(5):
                asked = {"path": "many", "limit": limit, "cursor": cursor}
                page = (await eve.get(f"{box}/files/list", params=asked)).raise_for_status().json()
                first = int(cursor) + 1
                assert [item["path"] for item in page["items"]] == [f"{first + n:06}" for n in range(limit)]
                assert page["cursor"] == page["items"][-1]["path"]
                cursor = page["cursor"]

        async def work() -> None:
            await asyncio.gather(*(pages(limit) for limit in (1, 1, 1, 2000, 2000, 2000)))

        async with memory_watched(apart, 60 << 20):
            assert await slowest_while(apart, work) < SLOWEST


async def test_large_outputs_are_answered_a_slice_at_a_time(apart: Separate, eve: httpx2.AsyncClient) -> None:
    size = 16 << 20
    async with sandbox_of(eve) as box:
        body = {"command": "tr '\\000' '\\377' < /dev/zero | head -c 16777216", "output_limit": size}

        async def run() -> None:
            async with eve.stream("POST", f"{box}/exec", json=body) as answer:
                assert answer.status_code == 200
                received = 0
                async for part in answer.aiter_raw():
                    received += len(part)
            assert received > 100_000_000

        async def work() -> None:
            await asyncio.gather(*(run() for _ in range(6)))

        async with memory_watched(apart, 400 << 20):
            assert await slowest_while(apart, work) < SLOWEST


def children(server: Separate) -> list[str]:
    """What the server runs, by their directories in /proc."""
    assert server.process is not None
    pid = server.process.pid
    return [f"/proc/{child}" for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_search_yields_to_everything_else(apart: Separate, eve: httpx2.AsyncClient) -> None:
    async with sandbox_of(eve) as box:
        (await eve.put(f"{box}/files", params={"path": "text"}, content=b"a" * 60 + b"\n")).raise_for_status()
        searching = asyncio.ensure_future(eve.post(f"{box}/files/search", json={"pattern": "(a+)+b"}))
        searchers: list[str] = []

        async def is_searching() -> bool:
            found = [child for child in children(apart) if "pattern_worker" in Path(child, "cmdline").read_text()]
            searchers.extend(found)
            return bool(found)

        await until(is_searching)
        fields = Path(searchers[0], "stat").read_text().rpartition(")")[2].split()
        assert int(fields[16]) == 10
        searching.cancel()
        with suppress(asyncio.CancelledError):
            await searching
