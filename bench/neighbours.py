"""Measures what one user of a server notices while another asks for everything at once.

Run as a program it is that other user: `python -m bench.neighbours URL KEY SECONDS` prints "ready" when it has begun.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"
OUTPUT = {"command": "tr '\\000' '\\377' < /dev/zero | head -c 16777216", "output_limit": 16 << 20}
ENTRIES = 300_000
PAUSE = 0.02
"""Seconds between two requests of the measured user."""


def client(url: str, key: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=300, limits=limits)


async def listing(url: str, key: str, until: Callable[[], bool]) -> list[float]:
    """The seconds of each `GET /v1/sandboxes`, one after the other."""
    took = []
    async with client(url, key) as user:
        while not until():
            began = time.perf_counter()
            (await user.get("/v1/sandboxes")).raise_for_status()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
    return took


async def measure(url: str, busy: str, quiet: str, seconds: float) -> dict[str, list[float]]:
    """The samples of the user `quiet`, alone and while the user `busy` asks for everything."""
    end = time.monotonic() + max(2.0, seconds / 6)
    alone = await listing(url, quiet, lambda: time.monotonic() > end)
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, url, busy, str(seconds), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise RuntimeError("the busy user did not begin")
    end = time.monotonic() + seconds
    beside = await listing(url, quiet, lambda: time.monotonic() > end)
    said = await process.stdout.read()
    if await process.wait():
        raise RuntimeError("the busy user has failed")
    print(f"the busy user: {said.decode().strip()}")
    return {"list alone": alone, "list beside": beside}


class Busy:
    """Slow stops, pages of a large directory, large outputs, searches: all at once, again and again."""

    def __init__(self, user: httpx2.AsyncClient, seconds: float) -> None:
        self._user, self._seconds = user, seconds
        self._until = 0.0
        self.counts: dict[str, int] = {}

    async def _box(self) -> str:
        made = (await self._user.post("/v1/sandboxes", json={"timeout": 3600})).raise_for_status()
        return f"/v1/sandboxes/{made.json()['id']}"

    async def _again(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._until:
            await call()
            self.counts[what] = self.counts.get(what, 0) + 1

    async def run(self) -> None:
        full, held = await self._box(), await self._box()
        make = f"mkdir many && cd many && seq {ENTRIES} | xargs touch && seq 100000 > text"
        (await self._user.post(f"{full}/exec", json={"command": make})).raise_for_status()
        print("ready", flush=True)
        self._until = time.monotonic() + self._seconds
        lists = ({"path": "many", "limit": limit} for limit in (1, 1, 1, 10_000, 10_000, 10_000))
        work = [self._again("stops", lambda: self._stop(held))]
        work += [self._again("outputs", lambda: self._drain("POST", f"{full}/exec", json=OUTPUT)) for _ in range(6)]
        work += [self._again("lists", self._list(full, params)) for params in lists]
        work += [self._again("globs", lambda: self._drain("GET", f"{full}/files/glob", params={"pattern": "**/1*"}))]
        await asyncio.gather(*work)
        for box in (full, held):
            (await self._user.delete(box)).raise_for_status()

    def _list(self, box: str, params: dict[str, str | int]) -> Callable[[], Awaitable[None]]:
        return lambda: self._drain("GET", f"{box}/files/list", params=params)

    async def _stop(self, box: str) -> None:
        (await self._user.post(f"{box}/processes", json={"command": STUBBORN})).raise_for_status()
        stops = (self._user.post(f"{box}/stop", json={"timeout": 5}) for _ in range(36))
        for stopped in await asyncio.gather(*stops):
            stopped.raise_for_status()

    async def _drain(self, method: str, url: str, **options: object) -> None:
        async with self._user.stream(method, url, **options) as answer:  # type: ignore[arg-type]
            async for _ in answer.aiter_raw():
                pass
        if answer.status_code not in (200, 504):  # a search may take too long beside all of this
            raise RuntimeError(f"{method} {url}: {answer.status_code}")


async def main(url: str, key: str, seconds: str) -> None:
    async with client(url, key) as user:
        busy = Busy(user, float(seconds))
        await busy.run()
        print(", ".join(f"{count} {what}" for what, count in busy.counts.items()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
