"""Frames: a header of 12 bytes that never changes, and a bounded payload."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MAX_PAYLOAD = 1 << 20
MAX_START = (2 << 20) + (1 << 16)
"""The payload of a START: the kernel takes 2 MiB of arguments and environment. Agents from generation 2 on take it."""
INPUT_WINDOW = 256 * 1024
"""What a client may send on channel 0 before the agent's first CREDIT."""

FINAL = END = 0x80
CHANNEL_MASK = 0x0F
STDOUT, STDERR = 1, 2
"""Channels of a process's output. Channel 0 is its input, or what a file, a directory or a connection holds."""

_HEADER = struct.Struct("<IIBBH")
_OFFSET = struct.Struct("<Q")
_CREDIT = struct.Struct("<I")
HEADER_SIZE = _HEADER.size


class Type(IntEnum):
    """What a frame is. Openers, from 0x10 on, begin a stream."""

    HELLO = 0x01
    PING = 0x02
    PONG = 0x03
    CREDIT = 0x04
    DATA = 0x05
    CLOSE = 0x06
    REPLY = 0x07
    ERROR = 0x08
    WORDS = 0x0E
    BOOT = 0x0F
    START = 0x10
    ATTACH = 0x11
    SIGNAL = 0x12
    PROCESSES = 0x13
    ENV = 0x14
    LIFE = 0x15
    STATS = 0x16
    READ = 0x20
    WRITE = 0x21
    LIST = 0x22
    STAT = 0x23
    MKDIR = 0x24
    REMOVE = 0x25
    RENAME = 0x26
    CHMOD = 0x27
    CHOWN = 0x28
    SYMLINK = 0x29
    COPY = 0x2A
    HASH = 0x2B
    RESIZE = 0x30
    WATCH = 0x40
    PORTS = 0x50
    DIAL = 0x51
    PACK = 0x60
    UNPACK = 0x61


class FrameError(ValueError):
    """The other side broke the protocol; the connection cannot continue."""


class Frame(NamedTuple):
    """One frame; `type` stays a plain int because the other side may send any."""

    stream: int
    type: int
    flags: int
    payload: bytes


def encode_frame(stream: int, type: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Raises FrameError for a payload above MAX_PAYLOAD, of a START above MAX_START."""
    if len(payload) > MAX_PAYLOAD:
        _check_large(len(payload), type)
    return _HEADER.pack(len(payload), stream, type, flags, 0) + payload


def data_frame(stream: int, channel: int, offset: int, data: bytes | memoryview, *, end: bool = False) -> bytes:
    return b"".join((data_head(stream, channel, offset, len(data), end=end), data))


def data_head(stream: int, channel: int, offset: int, size: int, *, end: bool = False) -> bytes:
    """What comes before the bytes of a DATA."""
    return _HEADER.pack(8 + size, stream, Type.DATA, channel | (END if end else 0), 0) + _OFFSET.pack(offset)


def credit_frame(stream: int, channel: int, amount: int) -> bytes:
    return _HEADER.pack(4, stream, Type.CREDIT, channel, 0) + _CREDIT.pack(amount)


def parse_data(payload: bytes) -> tuple[int, memoryview]:
    """The offset and the bytes of a DATA payload. Raises FrameError."""
    if len(payload) < 8:
        raise FrameError("DATA without an offset")
    return _OFFSET.unpack_from(payload)[0], memoryview(payload)[8:]


def parse_credit(payload: bytes) -> int:
    if len(payload) != 4:
        raise FrameError("CREDIT is not 4 bytes")
    amount: int = _CREDIT.unpack(payload)[0]
    return amount


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int, int, int]:
    """Payload length, stream, type and flags of the frame at `position`. Raises FrameError as `encode_frame` does."""
    length, stream, type, flags, _ = _HEADER.unpack_from(buffer, position)
    if length > MAX_PAYLOAD:
        _check_large(length, type)
    return length, stream, type, flags


def _check_large(length: int, type: int) -> None:
    limit = MAX_START if type == Type.START else MAX_PAYLOAD
    if length > limit:
        raise FrameError(f"frame of {length} bytes is above {limit}")


class Decoder:
    """Cuts what an agent sends into frames; holds at most one frame and what was fed last."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held that are not yet a whole frame."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield the frames that are complete now. Raises FrameError for a length above MAX_PAYLOAD.

        The iterator must be drained before the next feed.
        """
        held, view, position, size = self._buffer, memoryview(data), 0, len(data)
        if held:
            position = max(0, HEADER_SIZE - len(held))
            held += view[:position]
            if len(held) < HEADER_SIZE:
                return
            length, stream, type, flags = _bounded(held, 0)
            end = position + HEADER_SIZE + length - len(held)
            if end > size:
                held += view[position:]
                return
            payload = b"".join((memoryview(held)[HEADER_SIZE:], view[position:end]))
            position = end
            held.clear()
            yield Frame(stream, type, flags, payload)
        try:
            while size - position >= HEADER_SIZE:
                length, stream, type, flags = _bounded(view, position)
                end = position + HEADER_SIZE + length
                if end > size:
                    break
                payload = bytes(view[position + HEADER_SIZE : end])
                position = end
                yield Frame(stream, type, flags, payload)
        finally:
            held += view[position:]


def _bounded(buffer: bytearray | memoryview, position: int) -> tuple[int, int, int, int]:
    """The header of an agent's frame."""
    length, stream, type, flags, _ = _HEADER.unpack_from(buffer, position)
    if length > MAX_PAYLOAD:
        raise FrameError(f"frame of {length} bytes is above {MAX_PAYLOAD}")
    return length, stream, type, flags
