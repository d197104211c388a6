"""Reads the agent's greeting, the first message on a WebSocket of wire frames."""

from __future__ import annotations

import anyio

from skerry.core import Channel, ConnectionLost, HelloReader
from skerry.http import WebSocketStream


async def greeted(stream: WebSocketStream) -> Channel:
    """A channel over `stream`, which begins with the agent's HELLO. Raises ConnectionLost, Corrupted."""
    reader = HelloReader()
    while reader.hello is None:
        try:
            # Read no more than that: what follows belongs to the channel.
            reader.feed(await stream.receive(reader.missing))
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            why = stream.close_reason or "no greeting came"
            raise ConnectionLost(f"the server ended the connection: {why}") from error
    return Channel(stream=stream, token=b"", greeting=reader.hello)
