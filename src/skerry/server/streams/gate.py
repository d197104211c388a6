"""Checks a client's frames on their way to an agent, without any input or output.

Every frame is checked. An opener passes if the caller's `allows` says so; a refused one is answered here, and the
agent never hears of its stream. A frame that clients may not send ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from skerry.core import InvalidArgument, PermissionDenied, QuotaExceeded
from skerry.wire import (
    HEADER_SIZE,
    Attach,
    Failure,
    FieldError,
    Frame,
    FrameError,
    Life,
    Type,
    encode_frame,
    parse_header,
)

FIRST_OPENER = 0x10
MAX_REFUSED = 256
"""Openers that are refused on one connection: a client that continues after that does not do it by mistake."""
MOST_LOOKED_AT = 64 << 10
_CARRIERS = (int(Type.DATA), int(Type.CREDIT), int(Type.CLOSE))
_KNOWN = {int(kind): kind for kind in Type}
_DECIDING: dict[int, type[Attach | Life]] = {int(Type.ATTACH): Attach, int(Type.LIFE): Life}
"""Openers whose fields decide what they need: passed on as they were understood here, so the agent cannot understand
them differently."""


@dataclass(slots=True)
class Passage:
    """What happens to some bytes of a client."""

    forward: bytes | memoryview = b""
    """For the agent."""
    answer: bytes = b""
    """For the client."""
    opened: list[tuple[Type, bool]] = field(default_factory=list)
    """Each opener that is known, and whether it passed."""


class Gate:
    """The gate between one client and one agent. `feed` takes what the client sends, in pieces of any size."""

    def __init__(self, allows: Callable[[Frame], bool], *, longest: float | None = None) -> None:
        """`longest` is the longest lifetime in seconds that a sandbox may get; None: any."""
        self._allows, self._longest = allows, longest
        self._buffer = bytearray()
        self._needed = 0
        """Bytes to wait for before the next look: a frame in many pieces is not copied for each of them."""
        self._last = 0
        self._refused: set[int] = set()

    @property
    def pending(self) -> int:
        """Bytes held that are not yet a whole frame; never more than one frame."""
        return len(self._buffer)

    def announces(self, kind: Type, data: bytes) -> bool:
        """Whether `feed(data)` would see a frame of that type; False for long data."""
        size = len(self._buffer) + len(data)
        if size > MOST_LOOKED_AT or (self._buffer and size < self._needed):
            return False
        view = memoryview(bytes(self._buffer) + data)
        position = 0
        while len(view) - position >= HEADER_SIZE:
            length, _, found, _ = parse_header(view, position)
            if found == kind:
                return True
            position += HEADER_SIZE + length
        return False

    def passes(self, data: bytes) -> bool:
        """Whether `feed(data)` would pass it on as it is, since it is one frame of a stream that is open."""
        size = len(data) - HEADER_SIZE
        if self._buffer or size < 0 or int.from_bytes(data[:4], "little") != size:
            return False
        _, stream, kind, _ = parse_header(data)
        return kind in _CARRIERS and 0 < stream <= self._last and stream not in self._refused

    def feed(self, data: bytes) -> Passage:
        """Raises FrameError where the client broke the protocol: the connection must end."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return Passage()
            data, self._buffer = bytes(self._buffer), bytearray()
        self._needed = HEADER_SIZE
        passage = Passage()
        parts: list[bytes | memoryview] = []
        answers: list[bytes] = []
        view, size, position, kept = memoryview(data), len(data), 0, 0
        while size - position >= HEADER_SIZE:
            length, stream, kind, flags = parse_header(view, position)
            end = position + HEADER_SIZE + length
            if end > size:
                self._needed = end - position
                break
            if kind in _CARRIERS and 0 < stream <= self._last:
                changed = b"" if stream in self._refused else None
            else:
                frame = Frame(stream, kind, flags, bytes(view[position + HEADER_SIZE : end]))
                changed = self._look(frame, passage, answers)
            if changed is not None:
                parts += (view[kept:position], changed)
                kept = end
            position = end
        if not parts and position == size:
            passage.forward = data
        else:
            passage.forward = b"".join((*parts, view[kept:position]))
            self._buffer += view[position:]
        passage.answer = b"".join(answers)
        return passage

    def _look(self, frame: Frame, passage: Passage, answers: list[bytes]) -> bytes | None:
        """None: the frame passes unchanged; else its replacement, which may be empty."""
        if frame.stream == 0:
            if frame.type in (Type.PING, Type.PONG):
                return None
            raise FrameError(f"frame type {frame.type} on stream 0")
        if frame.type < FIRST_OPENER:
            raise FrameError(f"frame type {frame.type} on stream {frame.stream}")
        if frame.stream <= self._last:
            raise FrameError(f"stream {frame.stream} is opened where ids must ascend from {self._last}")
        self._last = frame.stream
        try:
            plain = self._plain(frame)
        except FieldError as error:
            answers.append(self._refuse(frame, InvalidArgument.code, f"a malformed request: {error}"))
            return b""
        kind = _KNOWN.get(frame.type)
        passed = kind is not None and self._allows(plain)
        if kind is not None:
            passage.opened.append((kind, passed))
        if not passed:
            name = f"0x{frame.type:02x}" if kind is None else kind.name.lower()
            answers.append(self._refuse(frame, PermissionDenied.code, f"you may not do this here: {name}"))
            return b""
        if plain.type == Type.LIFE and (why := self._too_long(Life.decode(plain.payload))):
            answers.append(self._refuse(frame, QuotaExceeded.code, why))
            return b""
        return None if plain is frame else encode_frame(plain.stream, plain.type, plain.payload, plain.flags)

    def _plain(self, frame: Frame) -> Frame:
        """The frame without anything that was not understood here."""
        kind = _DECIDING.get(frame.type)
        if kind is None:
            return frame
        message = kind.decode(frame.payload)
        if isinstance(message, Life):
            # A lease is held by the client, and the connection to the agent is the server's: see docs/how-to/remote.md.
            message = replace(message, lease=None)
        return frame._replace(payload=message.encode())

    def _too_long(self, life: Life) -> str | None:
        if self._longest is None or life.deadline_ms is None or 0 <= life.deadline_ms <= self._longest * 1000 + 1:
            return None
        return f"a lifetime is at most {self._longest:g} s here"

    def _refuse(self, frame: Frame, code: str, message: str) -> bytes:
        self._refused.add(frame.stream)
        if len(self._refused) > MAX_REFUSED:
            raise FrameError(f"{MAX_REFUSED} requests were refused already")
        return encode_frame(frame.stream, Type.ERROR, Failure(code=code, message=message).encode())


class Splice:
    """What goes to a client: the agent's bytes as they come, and the gate's answers between two of its frames."""

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the agent's current frame that have not arrived yet."""
        self._head = b""
        """The part of a header that has arrived."""
        self._waiting: list[bytes] = []

    def answer(self, data: bytes) -> bytes:
        """What to send now: nothing while the agent is in the middle of a frame; the answer then follows that frame."""
        if self._left or self._head:
            self._waiting.append(data)
            return b""
        return data

    def feed(self, data: bytes) -> bytes:
        """What to send for the bytes that came from the agent. Raises FrameError for a frame that is too long."""
        position, size, place = 0, len(data), 0
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
            else:
                missing = HEADER_SIZE - len(self._head)
                if size - position < missing:
                    self._head += data[position:]
                    break
                self._left = parse_header(self._head + data[position : position + missing])[0]
                self._head = b""
                position += missing
            if not self._left and not place:
                place = position
        if not self._waiting or not place:
            return data
        waiting, self._waiting = self._waiting, []
        return b"".join((data[:place], *waiting, data[place:]))
