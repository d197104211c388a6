"""Finds and replaces by patterns, in a separate process.

A regular expression can take for ever on a malicious line, a million names or lines take long, and replacing a text
with a longer one can fill any memory. Nothing can interrupt that in Python, so the server runs it in a process that it
can kill, and stays responsive. The process writes the answer itself, which passes through the server unread.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from skerry.core import InternalError, Timeout, from_problem
from skerry.sdk import AsyncSandbox
from skerry.server.access.identity import Actor
from skerry.server.context import Context
from skerry.server.projects.slots import SEARCHES
from skerry.server.web.models import inside
from skerry.server.web.pattern_worker import ANSWER, PROBLEM
from skerry.server.web.responses import Sender, Streamed

LIMIT = 30.0
NICE = 10
"""The niceness of the process: it yields CPU and disk to the server and to sandboxes."""


def glob(context: Context, who: Actor, box: AsyncSandbox, pattern: str, path: str, user: str | None) -> Streamed:
    """Raises Timeout if it takes too long, TooLarge, and what `AsyncFiles.glob` raises; the others likewise."""
    return _elsewhere(context, who, box, "glob", {"pattern": pattern, "path": path, "user": user})


def search(context: Context, who: Actor, box: AsyncSandbox, wanted: inside.SearchFiles) -> Streamed:
    return _elsewhere(context, who, box, "search", wanted.model_dump())


def replace(context: Context, who: Actor, box: AsyncSandbox, wanted: inside.ReplaceText) -> Streamed:
    return _elsewhere(context, who, box, "replace", wanted.model_dump())


def _elsewhere(context: Context, who: Actor, box: AsyncSandbox, what: str, options: dict[str, Any]) -> Streamed:
    async def pass_on(sender: Sender) -> None:
        await box.reconnect()  # starts the sandbox here, if allowed: the other process starts nothing
        order = {"provider": context.settings.provider, "sandbox": box.id, "what": what, "options": options}
        async with (
            context.slots.taken(SEARCHES, who),
            _asked(json.dumps(order).encode("ascii"), str(context.settings.home)) as (process, out),
        ):
            await sender.head(200, {"content-type": "application/json"})
            while data := await out.read(1 << 16):
                await sender.write(data)
            if await process.wait():
                raise InternalError("the search process ended unexpectedly")

    return Streamed(pass_on)


@asynccontextmanager
async def _asked(order: bytes, home: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """A process that has its answer, and where to read it; killed at the end. Raises the answer's problem, Timeout."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skerry.server.web.pattern_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "SKERRY_HOME": home},
    )
    assert process.stdout is not None
    try:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        await _answered(process, order)
        yield process, process.stdout
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _answered(process: asyncio.subprocess.Process, order: bytes) -> None:
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT):
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(order)
                await process.stdin.drain()
                process.stdin.close()
            kind = await process.stdout.read(1)
            if kind == ANSWER:
                return
            rest = await process.stdout.read()
    except TimeoutError:
        raise Timeout(
            f"this took longer than {LIMIT:g} s", hint="use a simpler pattern, or fewer and smaller files"
        ) from None
    if kind != PROBLEM or not rest:
        raise InternalError("the search process ended unexpectedly")
    raise from_problem(json.loads(rest))
