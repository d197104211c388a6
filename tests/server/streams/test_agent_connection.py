"""The server's own connection to an agent: it greets, and passes nothing on that came before it asked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from skerry.core import ConnectionLost, Corrupted, Unauthenticated
from skerry.server.streams.agent_connection import open_agent
from skerry.wire import Hello, Type, encode_frame
from tests.sdk.fake_agent import Connection, FakeProvider, failure

HELLO = Hello(generation=2, version="1.2.3")
GREETING = encode_frame(0, Type.HELLO, HELLO.encode())


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    provider = FakeProvider()
    yield provider
    await provider.aclose()
    assert not provider.failures, provider.failures


async def connect(fake: FakeProvider, *pieces: bytes) -> Hello:
    """What the server takes for the greeting of an agent that says `pieces` and closes the connection."""

    async def script(connection: Connection) -> None:
        assert (await connection.frame()).type == Type.HELLO
        for piece in pieces:
            await connection.raw(piece)
            await anyio.sleep(0.01)

    fake.script = script
    info = await fake.create_any()
    with anyio.fail_after(10):
        async with open_agent(fake, info.id) as (hello, _):
            return hello


async def test_a_greeting_comes_whole_or_in_pieces(fake: FakeProvider) -> None:
    assert await connect(fake, GREETING) == HELLO
    assert await connect(fake, GREETING[:5], GREETING[5:20], GREETING[20:]) == HELLO


async def test_more_than_a_greeting_is_refused(fake: FakeProvider) -> None:
    with pytest.raises(Corrupted, match="more than its greeting"):
        await connect(fake, GREETING + b"x")


async def test_a_bad_greeting_is_refused(fake: FakeProvider) -> None:
    with pytest.raises(Corrupted, match="malformed"):
        await connect(fake, b"\xff\xff\xff\xff" + GREETING[4:])
    with pytest.raises(Unauthenticated, match="wrong token"):
        await connect(fake, failure(0, "UNAUTHENTICATED", "wrong token"))


async def test_no_greeting_is_a_lost_connection(fake: FakeProvider) -> None:
    with pytest.raises(ConnectionLost, match="instead of a greeting"):
        await connect(fake, GREETING[:5])
