"""The first words on a WebSocket of wire frames: the agent's, which the server passes on."""

from __future__ import annotations

import anyio

from skerry.core import Channel, ConnectionLost, Corrupted, parse_hello
from skerry.http import WebSocketStream
from skerry.wire import HEADER_SIZE, Decoder, FrameError


async def greeted(stream: WebSocketStream) -> Channel:
    """A channel over `stream`, which begins with the agent's HELLO."""
    head = await _exactly(stream, HEADER_SIZE)
    decoder = Decoder()
    try:
        frames = list(decoder.feed(head))
        if not frames:
            frames = list(decoder.feed(await _exactly(stream, int.from_bytes(head[:4], "little"))))
    except FrameError as error:
        raise Corrupted(f"the server's greeting is malformed: {error}") from error
    return Channel(stream=stream, token=b"", greeting=parse_hello(frames[0]))


async def _exactly(stream: WebSocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            data += await stream.receive(size - len(data))
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            why = stream.close_reason or "no greeting came"
            raise ConnectionLost(f"the server ended the connection: {why}") from error
    return data
