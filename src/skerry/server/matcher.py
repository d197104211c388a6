"""The program that searches and replaces by regular expressions for the server: an order in, an answer out, as JSON.

It imports no more than it needs, since it starts anew for each order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from skerry.core.errors import SkerryError
from skerry.core.problems import to_problem
from skerry.sdk import AsyncSandbox


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """What `files.search` or `files.replace` returns, or the problem."""
    try:
        box = await AsyncSandbox.get(order["sandbox"], provider=order["provider"], auto_start=False)
        try:
            call = box.files.search if order["what"] == "search" else box.files.replace
            return {"result": dataclasses.asdict(await call(**order["options"]))}
        finally:
            await box.close()
    except SkerryError as error:
        return {"problem": to_problem(error)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(work(json.load(sys.stdin)))))
