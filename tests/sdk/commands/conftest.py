"""Sandboxes whose agent is a plain process, and whether a process is still there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import AsyncSandbox
from tests.sdk.agent_provider import AGENT, AgentProvider

NEEDS_AGENT = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root"),
    pytest.mark.skipif(not AGENT.exists(), reason="the agent is not built: make -C agent"),
]


@pytest.fixture
async def agents() -> AsyncIterator[AgentProvider]:
    provider = AgentProvider()
    yield provider
    for sandbox_id in list(provider.boxes):
        await provider.destroy(sandbox_id)


@pytest.fixture
async def box(agents: AgentProvider) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(agents, env={"GREETING": "hello"})
    with anyio.fail_after(90):
        yield sandbox
    await sandbox.destroy()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    with anyio.fail_after(5):
        while alive(pid):
            await anyio.sleep(0.01)
