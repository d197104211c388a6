"""Searching and replacing by regular expressions, in a process of its own.

Python's expressions can take for ever on a line made for it, and nothing can interrupt them: here the process is
killed, and the server has gone on meanwhile. Plain texts need none of this.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from weakref import WeakKeyDictionary

from skerry.core.errors import InternalError, Timeout
from skerry.core.problems import from_problem
from skerry.sdk import AsyncSandbox, Replacement, SearchMatch, SearchResult
from skerry.server.context import Context
from skerry.server.models import work

LIMIT = 30.0
AT_ONCE = 4
MAX_ANSWER = 256 << 20
_slots: WeakKeyDictionary[Context, asyncio.Semaphore] = WeakKeyDictionary()


async def search(context: Context, box: AsyncSandbox, wanted: work.Search) -> SearchResult:
    """Raises Timeout for an expression that takes too long, and as `AsyncFiles.search`."""
    if not wanted.regex:
        return await box.files.search(**wanted.model_dump())
    found = await _elsewhere(context, box, "search", wanted.model_dump())
    return SearchResult(
        matches=tuple(SearchMatch(**match) for match in found["matches"]),
        truncated=found["truncated"],
        skipped=found["skipped"],
    )


async def replace(context: Context, box: AsyncSandbox, wanted: work.Replace) -> Replacement:
    """Raises Timeout for an expression that takes too long, and as `AsyncFiles.replace`."""
    if not wanted.regex:
        return await box.files.replace(**wanted.model_dump())
    found = await _elsewhere(context, box, "replace", wanted.model_dump())
    return Replacement(files=found["files"], skipped=tuple(found["skipped"]))


async def _elsewhere(context: Context, box: AsyncSandbox, what: str, options: dict[str, Any]) -> dict[str, Any]:
    await box.reconnect()  # started here, if it may be: the other process starts nothing
    order = {"provider": context.settings.provider, "sandbox": box.id, "what": what, "options": options}
    async with _slots.setdefault(context, asyncio.Semaphore(AT_ONCE)):
        answer = await _ask(json.dumps(order).encode("ascii"), str(context.settings.home))
    if "problem" in answer:
        raise from_problem(answer["problem"])
    result: dict[str, Any] = answer["result"]
    return result


async def _ask(order: bytes, home: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skerry.server.matcher",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "SKERRY_HOME": home},
    )
    try:
        async with asyncio.timeout(LIMIT):
            out, _ = await process.communicate(order)
    except TimeoutError:
        raise Timeout(
            f"the expression took longer than {LIMIT:g} s", hint="a simpler one, or fewer and smaller files"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode or len(out) > MAX_ANSWER:
        raise InternalError("the search did not end as it should")
    answer: dict[str, Any] = json.loads(out)
    return answer
