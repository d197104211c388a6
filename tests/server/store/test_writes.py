"""Writes of many tasks at once: what a transaction leaves behind is gone before the next begins."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from skerry.server.store import AuditEntry, Store


@pytest.mark.anyio
async def test_many_writers_at_once_are_all_written(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "skerry.db")

    async def write(number: int) -> None:
        for step in range(200):
            entry = AuditEntry(
                time=time.time(), actor="user:x", credential="", action="a", operation=f"{number}-{step}",
                target="", project_id=None, outcome="ok", address="", request_id="",
            )  # fmt: skip
            await store.audit.add([entry])

    try:
        await asyncio.gather(*(write(number) for number in range(30)))
        assert len(await store.audit.before(None, limit=10_000)) == 6000
    finally:
        await store.close()
