"""The first words on an agent's channel, for providers and sessions alike."""

from __future__ import annotations

from skerry.core.errors import Corrupted, Unauthenticated, agent_error
from skerry.wire import GENERATION, Failure, FieldError, Frame, Hello, Type, encode_frame


def hello_frame(token: bytes) -> bytes:
    return encode_frame(0, Type.HELLO, Hello(generation=GENERATION, token=token).encode())


def parse_hello(frame: Frame) -> Hello:
    """The agent's answer. Raises Unauthenticated for a refused token, Corrupted for anything but a HELLO."""
    try:
        if frame.stream == 0 and frame.type == Type.HELLO:
            return Hello.decode(frame.payload)
        if frame.stream == 0 and frame.type == Type.ERROR:
            failure = Failure.decode(frame.payload)
            raise agent_error(failure.code, failure.errno, failure.message)
    except FieldError as error:
        raise Corrupted(f"the agent's greeting is malformed: {error}") from error
    except Unauthenticated:
        raise
    raise Corrupted(f"the agent began with frame type {frame.type} on stream {frame.stream}, not HELLO")
