"""Agents for the tests, built once: with sanitizers, and in `make test-all` also as it ships, as all other tests use it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.driver.client import Agent, Connection, wait_until

SOURCE = Path(__file__).parents[2] / "agent"


@functools.cache
def build(target: str) -> Path:
    name = {"all": "agent", "asan": "agent-asan", "fuzz": "fuzz_wire", "hasty": "agent-hasty"}[target]
    subprocess.run(["flock", SOURCE / "Makefile", "make", "-s", "-C", SOURCE, target], check=True)
    return SOURCE / "build" / name


@pytest.fixture(
    params=[pytest.param("all", id="release", marks=pytest.mark.long), pytest.param("asan", id="sanitized")]
)
def binary(request: pytest.FixtureRequest) -> Path:
    return build(request.param)


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that the sandbox's user can reach, which pytest's own tmp_path is not."""
    path = Path(tempfile.mkdtemp(prefix="agent-test-"))
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_agent(binary: Path, root: Path) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def make(**options: Any) -> Agent:
        home = root / f"agent{len(agents)}"
        home.mkdir()
        agents.append(Agent(binary, home, **options).start())
        return agents[-1]

    yield make
    for agent in agents:
        agent.stop()


@pytest.fixture
def agent(make_agent: Callable[..., Agent]) -> Agent:
    return make_agent()


@pytest.fixture
def connection(agent: Agent) -> Connection:
    """To an agent that has started its first file workers, which it does right after the first HELLO."""
    connection = agent.connect()
    wait_until(lambda: len(agent.children()) == (1 if agent.user == "root" else 2))
    return connection


@pytest.fixture
def work(agent: Agent) -> Path:
    """The agent's working directory, which belongs to uid 1000."""
    return Path(os.fsdecode(agent.workdir))
