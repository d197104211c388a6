"""Finding and replacing by patterns, in a process of its own.

Python's expressions can take for ever on a line made for it, a million names or lines take their time too, and a text
that is replaced by a longer one can fill any memory. Nothing can interrupt that: here the process is killed, and the
server has gone on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from skerry.core.errors import InternalError, Timeout
from skerry.core.models import FileInfo
from skerry.core.problems import from_problem
from skerry.sdk import AsyncSandbox, Replacement, SearchMatch, SearchResult
from skerry.server.context import Context
from skerry.server.identity import Actor
from skerry.server.models import work
from skerry.server.slots import Slots

LIMIT = 30.0
_slots = Slots(each=2, most=8)


async def glob(
    context: Context, who: Actor, box: AsyncSandbox, pattern: str, path: str, user: str | None
) -> list[FileInfo]:
    """Raises Timeout for what takes too long, TooLarge, and as `AsyncFiles.glob`; the others as theirs."""
    found = await _elsewhere(context, who, box, "glob", {"pattern": pattern, "path": path, "user": user})
    return [FileInfo(**item) for item in found]


async def search(context: Context, who: Actor, box: AsyncSandbox, wanted: work.Search) -> SearchResult:
    found = await _elsewhere(context, who, box, "search", wanted.model_dump())
    return SearchResult(
        matches=tuple(SearchMatch(**match) for match in found["matches"]),
        truncated=found["truncated"],
        skipped=found["skipped"],
    )


async def replace(context: Context, who: Actor, box: AsyncSandbox, wanted: work.Replace) -> Replacement:
    found = await _elsewhere(context, who, box, "replace", wanted.model_dump())
    return Replacement(files=found["files"], skipped=tuple(found["skipped"]))


async def _elsewhere(context: Context, who: Actor, box: AsyncSandbox, what: str, options: dict[str, Any]) -> Any:
    await box.reconnect()  # started here, if it may be: the other process starts nothing
    order = {"provider": context.settings.provider, "sandbox": box.id, "what": what, "options": options}
    async with _slots.taken(context, who):
        answer = await _ask(json.dumps(order).encode("ascii"), str(context.settings.home))
    if "problem" in answer:
        raise from_problem(answer["problem"])
    return answer["result"]


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
            f"this took longer than {LIMIT:g} s", hint="a simpler pattern, or fewer and smaller files"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InternalError("the search did not end as it should")
    answer: dict[str, Any] = json.loads(out)
    return answer
