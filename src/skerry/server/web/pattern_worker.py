"""The program that finds and replaces by patterns for the server: reads an order, writes a route's answer as JSON.

The first byte says whether the rest is an answer or a problem. The program imports only what it needs, since each
order starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from skerry.core import SkerryError, TooLarge, to_problem
from skerry.sdk import AsyncSandbox, Replacement

Call = Callable[..., Awaitable[Any]]
ANSWER, PROBLEM = b"+", b"-"
MEMORY = 1 << 30
MAX_ANSWER = 256 << 20


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """The answer of the route of `files.glob`, `files.search` or `files.replace`."""
    box = await AsyncSandbox.get(order["sandbox"], provider=order["provider"], auto_start=False)
    try:
        files = box.files
        calls: dict[str, Call] = {"glob": files.glob, "search": files.search, "replace": files.replace}
        found = await calls[order["what"]](**order["options"])
    finally:
        await box.close()
    if isinstance(found, list):
        return {"items": [dataclasses.asdict(item) for item in found], "cursor": None}
    counted = {"count": found.count} if isinstance(found, Replacement) else {}
    return {**dataclasses.asdict(found), **counted}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel kills this process rather than the server
    kind, answer = ANSWER, ""
    try:
        answer = json.dumps(asyncio.run(work(json.load(sys.stdin))))
    except SkerryError as error:
        kind, answer = PROBLEM, json.dumps(to_problem(error))
    except MemoryError:
        pass  # reported below
    if not 0 < len(answer) <= MAX_ANSWER:
        much = TooLarge("the result is too large", hint="use a narrower pattern, or fewer files")
        kind, answer = PROBLEM, json.dumps(to_problem(much))
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        sys.stdout.buffer.write(kind)
        sys.stdout.write(answer)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
