"""Providers that break the contract, each in one way that its own calls do not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import ByteStream

from examples.memory_provider import MemoryProvider
from skerry.core.contract.provider import AGENT_PORT, Channel
from skerry.core.models import SandboxInfo, SandboxSpec
from skerry.wire import FINAL, Decoder, Exit, Frame, Start, Type, encode_frame

Change = Callable[[Frame, int], bytes]
"""What becomes of the payload of a frame, on a stream opened by a frame of that type."""


class BentStream(ByteStream):
    """A channel that changes frames on their way; what it makes of them is sound protocol."""

    def __init__(self, inner: ByteStream, *, sent: Change, received: Change) -> None:
        self._inner, self._sent, self._received = inner, sent, received
        self._outgoing, self._incoming = Decoder(), Decoder()
        self._openers: dict[int, int] = {}

    async def send(self, item: bytes) -> None:
        frames = b""
        for frame in self._outgoing.feed(item):
            if frame.type >= Type.START:
                self._openers[frame.stream] = frame.type
            frames += encode_frame(frame.stream, frame.type, self._sent(frame, frame.type), frame.flags)
        await self._inner.send(frames)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        frames = b""
        while not frames:
            for frame in self._incoming.feed(await self._inner.receive(max_bytes)):
                payload = self._received(frame, self._openers.get(frame.stream, 0))
                frames += encode_frame(frame.stream, frame.type, payload, frame.flags)
        return frames

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._inner.extra_attributes


class Bent(MemoryProvider):
    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        channel = await super().dial(sandbox_id, port)
        return replace(channel, stream=BentStream(channel.stream, sent=self.sent, received=self.received))

    def sent(self, frame: Frame, opener: int) -> bytes:
        return frame.payload

    def received(self, frame: Frame, opener: int) -> bytes:
        return frame.payload


class AlwaysZero(Bent):
    """Reports exit code 0 for everything that ends."""

    def received(self, frame: Frame, opener: int) -> bytes:
        if opener == Type.START and frame.type == Type.REPLY and frame.flags & FINAL:
            return replace(Exit.decode(frame.payload), exit_code=0, signal=None, status="exited").encode()
        return frame.payload


class SpoilsFiles(Bent):
    """Changes the last byte of what is written, above 18 kB."""

    def sent(self, frame: Frame, opener: int) -> bytes:
        if frame.type == Type.DATA and len(frame.payload) > 18_000:
            return frame.payload[:-1] + bytes([frame.payload[-1] ^ 1])
        return frame.payload


class DropsTimeouts(Bent):
    """Takes timeouts and does not pass them on."""

    def sent(self, frame: Frame, opener: int) -> bytes:
        if frame.type == Type.START:
            return replace(Start.decode(frame.payload), timeout_ms=0).encode()
        return frame.payload


class Hangs(MemoryProvider):
    """Never makes what it was asked for."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        await anyio.sleep_forever()
        raise AssertionError


class MakesDuplicates(MemoryProvider):
    """Takes idempotency keys and does not look at them."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        return await super().create(replace(spec, idempotency_key=None))
