"""The agent's greeting over a server's WebSocket."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from skerry.core import ConnectionLost, Corrupted
from skerry.http import WebSocketStream
from skerry.providers.remote.greeting import greeted
from skerry.wire import Hello, Type, encode_frame

HELLO = Hello(generation=2, version="1.2.3")
GREETING = encode_frame(0, Type.HELLO, HELLO.encode())


class Inbox:
    """What a WebSocket has received and will receive, at most `size` bytes at a time."""

    close_reason: str | None = "the sandbox has ended"

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.data:
            raise anyio.EndOfStream
        size = min(max_bytes, self.size)
        data, self.data = self.data[:size], self.data[size:]
        return data


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["in bytes", "at once"])
async def test_what_follows_the_greeting_stays_in_the_stream(size: int) -> None:
    inbox = Inbox(GREETING + b"more", size)
    channel = await greeted(cast(WebSocketStream, inbox))
    assert (channel.greeting, inbox.data) == (HELLO, b"more")


async def test_a_stream_that_ends_before_its_greeting_is_lost() -> None:
    with pytest.raises(ConnectionLost, match="the sandbox has ended"):
        await greeted(cast(WebSocketStream, Inbox(GREETING[:-1], 1 << 20)))


async def test_a_bad_greeting_is_refused() -> None:
    with pytest.raises(Corrupted):
        await greeted(cast(WebSocketStream, Inbox(encode_frame(1, Type.REPLY), 1 << 20)))
