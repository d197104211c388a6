"""One loop over everything that is measured one at a time, so that a slow moment of the machine hits all alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench import floor
from bench.results import Results

FLOOR = "floor"
PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """Something to time: `sample` returns its seconds, `n` is how many samples to take."""

    name: str
    sample: Callable[[], Awaitable[float]]
    n: int
    errors: tuple[type[Exception], ...]


def due(round_number: int, rounds: int, n: int) -> bool:
    """Whether an op wanted `n` times in `rounds` has its turn in this one; the turns are spread evenly."""
    return (round_number + 1) * n // rounds > round_number * n // rounds


async def interleave(ops: Sequence[Op], rounds: int, results: Results, advance: Callable[[], None]) -> None:
    """Sample each op in a new order every round, a plain process before each; notes failures and continues."""
    shuffle = random.Random(0).shuffle
    for op in ops:
        await _attempt(op, results)
        results.samples.pop(op.name, None)  # the first sample only warms up
    for number in range(rounds):
        turn = [op for op in ops if due(number, rounds, op.n)]
        shuffle(turn)
        for op in turn:
            results.samples.setdefault(FLOOR, []).append(floor.spawn())
            await _attempt(op, results)
        advance()


async def _attempt(op: Op, results: Results) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            results.samples.setdefault(op.name, []).append(await op.sample())
    except op.errors as error:
        results.errors.setdefault(op.name, []).append(repr(error))
