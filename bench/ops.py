"""What is measured one at a time, for each backend."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from bench import floor
from bench.box import Backend, Box
from bench.interleave import Op
from bench.skerry_ops import LIFETIME, SkerryBackend
from skerry import Sandbox

SIZES = {"1 kB": 1_000, "64 MB": 64_000_000}
LARGE_SHARE = 3
"""Large files are moved in one of this many rounds."""
_numbers = itertools.count()
T = TypeVar("T")


def make_files(directory: Path) -> dict[str, Path]:
    """A local file of each size, with content that nothing can compress."""
    directory.mkdir()
    files = {}
    for size, count in SIZES.items():
        files[size] = directory / f"source-{count}"
        files[size].write_bytes(os.urandom(count))
    return files


def copy_op(files: dict[str, Path], rounds: int) -> Op:
    source = files["64 MB"]

    async def sample() -> float:
        target = _new(source.parent)
        try:
            return floor.copy(source, target)
        finally:
            target.unlink(missing_ok=True)

    return Op(name="cp 64 MB", sample=sample, n=_large(rounds), errors=())


def box_ops(backend: Backend, box: Box, files: dict[str, Path], n: int) -> list[Op]:
    """Everything a backend does; `box` is a running box of that backend."""

    async def create() -> float:
        start = time.perf_counter()
        async with backend.box():
            return time.perf_counter() - start

    ops = {"create": create, "exec": _timed(box.run_true), "first byte": _timed(box.first_byte)}
    counts = dict.fromkeys(ops, n)
    for size, source in files.items():
        ops[f"upload {size}"] = _upload(box, source)
        ops[f"download {size}"] = _download(box, source)
        counts[f"upload {size}"] = counts[f"download {size}"] = n if size == "1 kB" else _large(n)
    return [
        Op(name=f"{backend.name}.{name}", sample=sample, n=counts[name], errors=backend.errors)
        for name, sample in ops.items()
    ]


async def blocking_ops(stack: AsyncExitStack, skerry: SkerryBackend, n: int) -> list[Op]:
    """The blocking API beside the async one; timed in a separate thread, where no event loop runs."""
    sandbox = await _in_thread(lambda: Sandbox.create(timeout=LIFETIME).__enter__())
    stack.push_async_callback(_in_thread, lambda: sandbox.__exit__(None, None, None))
    skerry.ids.add(sandbox.id)

    async def create() -> float:
        return await _in_thread(skerry.blocking_create)

    async def run() -> float:
        return await _in_thread(lambda: skerry.blocking_exec(sandbox))

    return [
        Op(name="skerry.create blocking", sample=create, n=n, errors=skerry.errors),
        Op(name="skerry.exec blocking", sample=run, n=n, errors=skerry.errors),
    ]


async def _in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call to its end, also when the caller is cancelled: it may be making a sandbox."""
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _timed(call: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        start = time.perf_counter()
        await call()
        return time.perf_counter() - start

    return sample


def _upload(box: Box, source: Path) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        name = _new(Path()).name
        start = time.perf_counter()
        await box.upload(source, name)
        seconds = time.perf_counter() - start
        await box.remove(name)
        return seconds

    return sample


def _download(box: Box, source: Path) -> Callable[[], Awaitable[float]]:
    """The file is put there once, by the first sample, which warms up."""
    there = False

    async def sample() -> float:
        nonlocal there
        if not there:
            await box.upload(source, source.name)
            there = True
        target = _new(source.parent)
        try:
            start = time.perf_counter()
            await box.download(source.name, target)
            seconds = time.perf_counter() - start
            if target.stat().st_size != source.stat().st_size:
                raise OSError(f"{target.stat().st_size} bytes came instead of {source.stat().st_size}")
            return seconds
        finally:
            target.unlink(missing_ok=True)

    return sample


def _new(directory: Path) -> Path:
    """A name never used before: replacing a file costs more than making one."""
    return directory / f"copy-{next(_numbers)}"


def _large(n: int) -> int:
    return -(-n // LARGE_SHARE)
