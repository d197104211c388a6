"""Everyday operations beside their baselines: terminals (a plain pty), watching, whole trees (`cp`, `tar | tar`)."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.interleave import Op
from bench.skerry_ops import LIFETIME, SkerryBackend
from skerry import AsyncSandbox, AsyncTerminal, AsyncTerminalStream

ECHO = ["/bin/sh", "-c", "stty raw -echo; echo ready; exec cat"]
"""A program that answers each key itself; the line discipline's own echo would not show the way to a program."""
FLOOD_BYTES = 32_000_000
FLOOD = ["/bin/sh", "-c", f"stty -opost; exec head -c {FLOOD_BYTES} /dev/zero"]
SPARSE = 5_000_000_000
Sample = Callable[[], Awaitable[float]]


async def daily_ops(stack: AsyncExitStack, skerry: SkerryBackend, directory: Path, rounds: int, trees: int) -> list[Op]:
    """What is measured in a separate sandbox, which lives as long as `stack`; `trees` times for whole trees."""
    sandbox = await AsyncSandbox.create(timeout=LIFETIME)
    stack.push_async_callback(sandbox.destroy)
    skerry.ids.add(sandbox.id)
    terminal = await sandbox.terminals.create(ECHO)
    stream = await stack.enter_async_context(terminal.attach())
    await _until(stream, b"ready\n")
    few = max(1, rounds // 6)
    return [
        Op(name="pty.key", sample=await _local_key(stack), n=rounds, errors=()),
        Op(name="skerry.key", sample=_key(terminal, stream), n=rounds, errors=skerry.errors),
        Op(name="pty.flood", sample=_local_flood, n=few, errors=()),
        Op(name="skerry.flood", sample=lambda: _flood(sandbox), n=few, errors=skerry.errors),
        Op(name="skerry.watch", sample=await _watch(stack, sandbox), n=rounds, errors=skerry.errors),
        *tree_ops(sandbox, skerry, directory, trees),
    ]


def make_tree(directory: Path, files: int) -> Path:
    """`files` small files in directories of 100, and one sparse file of 5 GB."""
    tree = directory / "tree"
    for number in range(files):
        if number % 100 == 0:
            folder = tree / f"{number // 10_000:02}" / f"{number // 100:05}"
            folder.mkdir(parents=True)
        (folder / f"file-{number:06}").write_bytes(os.urandom(256) * (1 + number % 8))
    with (tree / "sparse").open("wb") as file:
        for offset in range(0, SPARSE, SPARSE // 10):
            file.seek(offset)
            file.write(os.urandom(4096))
        file.truncate(SPARSE)
    return tree


def tree_ops(sandbox: AsyncSandbox, skerry: SkerryBackend, directory: Path, n: int) -> list[Op]:
    tree, out = directory / "tree", directory / "out"

    async def upload() -> float:
        start = time.perf_counter()
        await sandbox.files.upload(tree, "uploaded")
        return time.perf_counter() - start

    async def download() -> float:
        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        await sandbox.files.download("uploaded", out)
        return time.perf_counter() - start

    async def after_upload() -> float:
        if not await sandbox.files.exists("uploaded"):
            await sandbox.files.upload(tree, "uploaded")
        return await download()

    async def into_nothing() -> float:
        if await sandbox.files.exists("uploaded"):
            await sandbox.files.remove("uploaded", recursive=True)
        return await upload()

    copy = ["cp", "-a", str(tree), str(out)]
    pipe = ["sh", "-c", f"mkdir {out} && tar -cSf - -C {tree} . | tar -xSf - -C {out}"]
    return [
        Op(name="tree.cp", sample=lambda: _into(out, copy), n=n, errors=()),
        Op(name="tree.tar", sample=lambda: _into(out, pipe), n=n, errors=()),
        Op(name="skerry.tree upload", sample=into_nothing, n=n, errors=skerry.errors),
        Op(name="skerry.tree download", sample=after_upload, n=n, errors=skerry.errors),
    ]


async def _into(out: Path, command: list[str]) -> float:
    """The same place each time, empty: replacing costs more than making."""
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - start


async def _until(stream: AsyncTerminalStream, text: bytes) -> None:
    seen = b""
    async for chunk in stream:
        seen += chunk.data
        if text in seen:
            return
    raise OSError("the terminal ended")


def _key(terminal: AsyncTerminal, stream: AsyncTerminalStream) -> Sample:
    async def sample() -> float:
        start = time.perf_counter()
        await terminal.write(b"k")
        async for chunk in stream:
            if chunk.data == b"k":
                return time.perf_counter() - start
            break
        raise OSError("the terminal answered something else")

    return sample


async def _flood(sandbox: AsyncSandbox) -> float:
    start, size = time.perf_counter(), 0
    terminal = await sandbox.terminals.create(FLOOD)
    async with terminal.attach() as stream:
        async for chunk in stream:
            size += len(chunk.data)
    if size != FLOOD_BYTES:
        raise OSError(f"{size} bytes came instead of {FLOOD_BYTES}")
    return time.perf_counter() - start


@asynccontextmanager
async def _local_terminal(command: list[str]) -> AsyncIterator[int]:
    """Our end of a pty, with `command` at the other."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, close_fds=True
    ) as running:
        os.close(slave)
        try:
            yield master
        finally:
            running.kill()
            os.close(master)


async def _local_key(stack: AsyncExitStack) -> Sample:
    master = await stack.enter_async_context(_local_terminal(ECHO))
    while b"ready\n" not in os.read(master, 4096):
        pass

    async def sample() -> float:
        start = time.perf_counter()
        os.write(master, b"k")
        if os.read(master, 16) != b"k":
            raise OSError("the pty answered something else")
        return time.perf_counter() - start

    return sample


async def _local_flood() -> float:
    start, size = time.perf_counter(), 0
    async with _local_terminal(FLOOD) as master:
        while size < FLOOD_BYTES:
            size += len(os.read(master, 65536))
    return time.perf_counter() - start


async def _watch(stack: AsyncExitStack, sandbox: AsyncSandbox) -> Sample:
    """Seconds from the request to change a file's time to the event; the answer to the request comes beside it."""
    await sandbox.files.write("watched/file", b"x")
    watch = await stack.enter_async_context(sandbox.files.watch("watched"))
    mode = 0o600

    async def sample() -> float:
        nonlocal mode
        mode ^= 0o044
        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sandbox.files.chmod("watched/file", mode))
            async for _ in watch:
                return time.perf_counter() - start
        raise OSError("the watch ended")

    return sample
