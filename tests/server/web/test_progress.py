"""Lines of a long call for a client that is slower than the call."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from fastapi import Request
from starlette.types import Message

from skerry.server.web.progress import MOST, followed

pytestmark = pytest.mark.anyio


async def test_what_a_slow_client_misses_is_counted_and_little_is_kept_for_it() -> None:
    sent: list[dict[str, Any]] = []
    told = anyio.Event()

    async def work(log: Any, progress: Any) -> dict[str, Any]:
        await anyio.sleep(0)
        for number in range(200):
            log(f"{number} " + "x" * 50_000)
        told.set()
        return {"result": 1}

    async def send(message: Message) -> None:
        await told.wait()  # takes nothing before
        sent.extend(json.loads(line) for line in message.get("body", b"").splitlines() if line)

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    scope = {"type": "http", "method": "POST", "headers": [(b"accept", b"application/x-ndjson")]}
    await followed(Request(scope), work)(scope, receive, send)
    first, *rest, last = sent
    assert last == {"type": "done", "result": 1}
    assert first == {"type": "gap", "lines": 200 - len(rest)}
    assert [int(line["text"].split()[0]) for line in rest] == list(range(200 - len(rest), 200))
    assert MOST / 2 < sum(len(line["text"]) for line in rest) < MOST
