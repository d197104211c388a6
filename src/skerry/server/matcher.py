"""The program that finds and replaces by patterns for the server: an order in, an answer out, as JSON.

It imports no more than it needs, since it starts anew for each order.
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

from skerry.core.errors import SkerryError, TooLarge
from skerry.core.problems import to_problem
from skerry.sdk import AsyncSandbox

Call = Callable[..., Awaitable[Any]]
MEMORY = 1 << 30
MAX_ANSWER = 256 << 20


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """What `files.glob`, `files.search` or `files.replace` returns, or the problem."""
    try:
        box = await AsyncSandbox.get(order["sandbox"], provider=order["provider"], auto_start=False)
        try:
            files = box.files
            calls: dict[str, Call] = {"glob": files.glob, "search": files.search, "replace": files.replace}
            found = await calls[order["what"]](**order["options"])
            if isinstance(found, list):
                return {"result": [dataclasses.asdict(item) for item in found]}
            return {"result": dataclasses.asdict(found)}
        finally:
            await box.close()
    except SkerryError as error:
        return {"problem": to_problem(error)}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this than the server
    try:
        answer = json.dumps(asyncio.run(work(json.load(sys.stdin))))
    except MemoryError:
        answer = ""
    if not 0 < len(answer) <= MAX_ANSWER:
        error = TooLarge("this finds or makes more than can be held", hint="a narrower pattern, or fewer files")
        answer = json.dumps({"problem": to_problem(error)})
    sys.stdout.write(answer)


if __name__ == "__main__":
    main()
