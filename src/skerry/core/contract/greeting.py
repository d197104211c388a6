"""The greeting at the start of an agent's channel, shared by providers, sessions and the server."""

from __future__ import annotations

from skerry.core.errors import Corrupted, Unauthenticated, agent_error
from skerry.wire import (
    GENERATION,
    HEADER_SIZE,
    Failure,
    FieldError,
    FrameError,
    Hello,
    Type,
    encode_frame,
    parse_header,
)


def hello_frame(token: bytes) -> bytes:
    return encode_frame(0, Type.HELLO, Hello(generation=GENERATION, token=token).encode())


class HelloReader:
    """Reads the agent's HELLO from the first bytes of a channel, in pieces of any size. It does no input or output."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        """What the agent said, once all of it is there."""
        self.missing = HEADER_SIZE
        """How many bytes of the greeting are known to be missing: at first those of its header."""
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held of a greeting that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> memoryview:
        """Take what belongs to the greeting; the rest of `data`, not copied, belongs to the caller.

        Raises Unauthenticated for a refused token, Corrupted for anything but a HELLO.
        """
        rest = memoryview(data)
        while self.missing and rest:
            taken, rest = rest[: self.missing], rest[self.missing :]
            self._buffer += taken
            self.missing -= len(taken)
            if not self.missing:
                self._look()
        return rest

    def _look(self) -> None:
        """Called when the missing bytes are there: the header, or the whole greeting."""
        try:
            length, stream, type, _ = parse_header(self._buffer)
            if stream != 0 or type not in (Type.HELLO, Type.ERROR):
                raise Corrupted(f"the agent began with frame type {type} on stream {stream}, not HELLO")
            self.missing = HEADER_SIZE + length - len(self._buffer)
            if not self.missing:
                self.hello = _parse(type, bytes(self._buffer[HEADER_SIZE:]))
                self._buffer.clear()
        except (FrameError, FieldError) as error:
            raise Corrupted(f"the agent's greeting is malformed: {error}") from error


def _parse(type: int, payload: bytes) -> Hello:
    if type == Type.ERROR:
        failure = Failure.decode(payload)
        error = agent_error(failure.code, failure.errno, failure.message)
        if isinstance(error, Unauthenticated | Corrupted):
            raise error
        raise Corrupted(f"the agent began with {error.code} instead of a greeting") from error
    hello = Hello.decode(payload)
    if hello.generation < 1:
        raise Corrupted(f"the agent's greeting is malformed: there is no generation {hello.generation}")
    return hello
