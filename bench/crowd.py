"""Many boxes: one after another, staggered, at once, and alive together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from bench.box import Backend
from bench.memory import give_back, own_memory, settled_available
from bench.results import Alive, Crowd

PATIENCE = 300.0
"""Seconds for one box among many to answer, above which it counts as failed."""
STAGGER = 0.2
WIDTH = 8
"""How many boxes start, or answer their second command, at a time."""


async def sequential(backend: Backend, n: int) -> Crowd:
    """One after another, each destroyed before the next starts."""
    crowd = Crowd(asked=n)
    begin = time.perf_counter()
    for _ in range(n):
        start = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE), backend.box():
                crowd.seconds.append(time.perf_counter() - start)
        except backend.errors as error:
            crowd.errors.append(repr(error))
    crowd.wall = time.perf_counter() - begin
    return crowd


async def together(backend: Backend, n: int, *, gap: float = 0.0) -> Crowd:
    """Started `gap` seconds apart, all at once by default; none is destroyed before the last has answered."""
    crowd = Crowd(asked=n)
    all_done = asyncio.Event()
    ended = 0
    begin = time.perf_counter()

    def end() -> None:
        nonlocal ended
        ended += 1
        if ended == n:
            all_done.set()

    async def one(number: int) -> None:
        await asyncio.sleep(number * gap)
        answered = False
        start = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE) as patience, backend.box():
                now = time.perf_counter()
                patience.reschedule(None)
                crowd.seconds.append(now - start)
                crowd.wall = max(crowd.wall, now - begin)
                answered = True
                end()
                await all_done.wait()
        except backend.errors as error:
            crowd.errors.append(repr(error))
            if not answered:
                end()

    async with asyncio.TaskGroup() as tasks:
        for number in range(n):
            tasks.create_task(one(number))
    return crowd


async def alive(backend: Backend, n: int, advance: Callable[[], None]) -> Alive:
    """All alive together; each answers a second command once the last one is up, then the memory is read."""
    result = Alive(asked=n)
    gate = asyncio.Semaphore(WIDTH)
    all_up, all_answered, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    give_back()
    before, own_before = await settled_available(), own_memory()
    begin = time.perf_counter()
    counts = {all_up: 0, all_answered: 0}

    def arrive(*points: asyncio.Event) -> None:
        for point in points:
            counts[point] += 1
            if counts[point] == n:
                point.set()

    async def one() -> None:
        ahead = [all_up, all_answered]
        try:
            async with AsyncExitStack() as stack:
                async with gate, asyncio.timeout(PATIENCE):
                    box = await stack.enter_async_context(backend.box())
                result.up += 1
                advance()
                arrive(ahead.pop(0))
                await all_up.wait()
                async with gate, asyncio.timeout(PATIENCE):
                    start = time.perf_counter()
                    await box.run_true()
                    result.seconds.append(time.perf_counter() - start)
                arrive(ahead.pop(0))
                await release.wait()
        except backend.errors as error:
            result.errors.append(repr(error))
            arrive(*ahead)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(n):
            tasks.create_task(one())
        await all_up.wait()
        result.wall = time.perf_counter() - begin
        await all_answered.wait()
        result.memory = before - await settled_available()
        result.client_memory = own_memory() - own_before
        release.set()
    return result
