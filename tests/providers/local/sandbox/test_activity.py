"""When a sandbox that runs was last active: known to everybody who looks, and not by asking it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import Sandbox
from skerry.core.models import SandboxSpec, State
from skerry.providers.local import LocalProvider
from skerry.providers.local.engine import Engine
from skerry.wire import LastWords, Type, encode_frame

PATIENCE = 30.0
LATE = 7.0
"""A note is a second late, and there is one in 5 seconds."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("activity") / "home"
    Engine(path).prepare()
    return path


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    engine = Engine(home)
    yield engine
    for info in engine.list():
        engine.destroy(info.id)


def last_active(engine: Engine, sandbox_id: str) -> float:
    """As `get` says it, and so does a list."""
    found = engine.get(sandbox_id).last_active_at
    assert found is not None
    (listed,) = engine.list()
    assert listed.last_active_at is not None
    assert abs(listed.last_active_at - found) < 1
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_is_activity_and_looking_is_not(engine: Engine) -> None:
    made = engine.create(SandboxSpec(timeout=600.0))
    assert made.started_at is not None
    assert abs(last_active(engine, made.id) - made.started_at) < 1
    sandbox = Sandbox.get(made.id, provider=LocalProvider(engine))
    time.sleep(1.5)
    sandbox.exec("true")
    done = time.time()
    until(lambda: abs(last_active(engine, made.id) - done) < 1)
    for _ in range(4):
        sandbox.info()
        sandbox.is_ready()
        sandbox.processes.list()
        time.sleep(1)
    assert abs(last_active(engine, made.id) - done) < 1
    with sandbox.exec_stream("sleep 600") as running:
        until(lambda: time.time() - last_active(engine, made.id) < 0.5)
        time.sleep(2)
        assert time.time() - last_active(engine, made.id) < 0.5  # it is at work all the time
        running.kill()
    ended = time.time()
    time.sleep(LATE)
    assert abs(last_active(engine, made.id) - ended) < 1
    sandbox.pause()  # what was known stays known
    assert abs(last_active(engine, made.id) - ended) < 1
    sandbox.resume()
    init = engine.store.read(made.id).init
    assert init is not None
    init.kill(PATIENCE)
    info = engine.get(made.id)
    assert info.state is State.FAILED
    assert info.last_active_at is not None
    assert abs(info.last_active_at - ended) < 1
    sandbox.close()


@pytest.mark.parametrize(
    "note",
    [
        b"garbage",
        b"\xff" * (3 << 20),
        encode_frame(0, Type.WORDS, LastWords(reason="at_rest", at_ms=2**62).encode()),
        encode_frame(0, Type.WORDS, LastWords(reason="at_rest", at_ms=-(2**62)).encode()),
        encode_frame(0, Type.WORDS, LastWords(reason="end", at_ms=0).encode()),
    ],
    ids=["garbage", "huge", "the future", "long ago", "last words"],
)
def test_a_note_is_the_sandbox_s_word_and_not_believed_beyond_reason(engine: Engine, note: bytes) -> None:
    made = engine.create(SandboxSpec(timeout=600.0))
    engine.store.words(made.id).write_bytes(note)
    assert made.started_at is not None
    assert made.started_at <= last_active(engine, made.id) <= time.time()
