"""What a server does that nobody asks for goes on, whatever happens to a part of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from skerry.core.models import SandboxInfo
from tests.server.conftest import Running


def until(what: object, *, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_part_that_fails_begins_again_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(tmp_path / "home")
    try:
        looks: list[float] = []
        sweeps: list[float] = []
        list_ = running.context.providers.default.list

        async def counted() -> list[SandboxInfo]:
            looks.append(time.monotonic())
            return list(await list_())

        async def broken() -> list[str]:
            sweeps.append(time.monotonic())
            raise RuntimeError("nobody has thought of this")

        monkeypatch.setattr(running.context.providers.default, "list", counted)
        monkeypatch.setattr(running.context.leases, "sweep", broken)
        until(lambda: len(sweeps) >= 2)
        before = len(looks)
        until(lambda: len(looks) >= before + 2)
        with running.client_of("owner") as client:
            assert client.get("/health").status_code == 200
    finally:
        running.stop()
