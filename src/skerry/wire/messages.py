"""Messages of connections, processes, terminals and ports. See docs/design/wire.md."""

from __future__ import annotations

from dataclasses import replace
from enum import IntFlag
from typing import ClassVar

from skerry.wire.codec import Message, tag
from skerry.wire.fields import FieldError
from skerry.wire.frames import STDERR, STDOUT, Decoder, FrameError, Type
from skerry.wire.opener import Opener, Shape

GENERATION = 2

MAX_PROCESSES = 1024
"""The most entries in a list of processes."""
MAX_PORTS = 65_536
"""The most entries in a list of ports."""
LAST_WORDS_LIMIT = 2 << 20
"""The most of a file of last words that is worth reading: one frame fits well within."""
AT_WORK = ("at_work", "at_rest")
"""The reasons of a note."""


class Boot(Message):
    type: ClassVar[Type | None] = Type.BOOT
    token: bytes = tag(1, secret=True)
    env: tuple[bytes, ...] = tag(2, default=(), secret=True)
    workdir: bytes = tag(3, default=b"/")
    user: str = tag(4, default="root")
    deadline_ms: int = tag(5, default=0)
    idle_ms: int = tag(6, default=0)


class Hello(Message):
    type: ClassVar[Type | None] = Type.HELLO
    generation: int = tag(1)
    token: bytes = tag(2, default=b"", secret=True)
    version: str = tag(3, default="")
    uptime_ms: int = tag(4, default=0)


class Failure(Message):
    type: ClassVar[Type | None] = Type.ERROR
    code: str = tag(1)
    errno: int = tag(2, default=0)
    message: str = tag(3, default="")


class Empty(Message):
    """A REPLY that says no more than "done"."""


class StartFlags(IntFlag):
    FOREGROUND = 1
    STDIN = 2
    TERMINAL = 4


def _start_shape(flags: StartFlags) -> Shape:
    return Shape(
        channels=(STDOUT, STDERR),
        input=bool(flags & (StartFlags.STDIN | StartFlags.TERMINAL)),
        greets=True,
        jumps=not flags & StartFlags.FOREGROUND,
        notices=bool(flags & StartFlags.TERMINAL),
        max_replies=2,
    )


_START_SHAPES = tuple(_start_shape(StartFlags(bits)) for bits in range(8))


class Start(Opener):
    type: ClassVar[Type] = Type.START
    argv: tuple[bytes, ...] = tag(1)
    env: tuple[bytes, ...] = tag(2, default=(), secret=True)
    cwd: bytes = tag(3, default=b"")
    user: str = tag(4, default="")
    timeout_ms: int = tag(5, default=0)
    window: int = tag(6, default=256 * 1024)
    flags: int = tag(7, default=0)
    cols: int | None = tag(8, default=None)
    rows: int | None = tag(9, default=None)

    @property
    def shape(self) -> Shape:
        """Another client can take over a background process; then its output may have gaps."""
        return _START_SHAPES[self.flags % len(_START_SHAPES)]


class Started(Message):
    id: int = tag(1)
    pid: int = tag(2)
    started_ms: int = tag(3)


class Exit(Message):
    exit_code: int | None = tag(1, default=None)
    signal: int | None = tag(2, default=None)
    status: str = tag(3)
    duration_us: int = tag(4)
    stdout_bytes: int = tag(5)
    stderr_bytes: int = tag(6)
    oom_kills: int = tag(7, default=0)


class AttachFlags(IntFlag):
    VIEW = 1


class Attach(Opener):
    type: ClassVar[Type] = Type.ATTACH
    SHAPE: ClassVar[Shape] = Shape(
        channels=(STDOUT, STDERR), input=True, greets=True, jumps=True, max_replies=2, of_process=True
    )
    VIEW_SHAPE: ClassVar[Shape] = replace(SHAPE, input=False)
    id: int = tag(1)
    since_stdout: int = tag(2, default=0)
    since_stderr: int = tag(3, default=0)
    window: int = tag(6, default=256 * 1024)
    flags: int = tag(7, default=0)

    @property
    def shape(self) -> Shape:
        """A view sends no input."""
        return self.VIEW_SHAPE if self.flags & AttachFlags.VIEW else self.SHAPE

    def begins_at(self, channel: int) -> int:
        return max(0, self.since_stdout if channel == STDOUT else self.since_stderr)


class Attached(Message):
    id: int = tag(1)
    pid: int = tag(2)
    started_ms: int = tag(3)
    start_stdout: int = tag(4)
    start_stderr: int = tag(5)
    cols: int | None = tag(6, default=None)
    rows: int | None = tag(7, default=None)


class Notice(Message):
    """What has changed for an attached client; absent: nothing of that kind."""

    controls: int | None = tag(1, default=None)
    cols: int | None = tag(2, default=None)
    rows: int | None = tag(3, default=None)


class Resize(Opener):
    type: ClassVar[Type] = Type.RESIZE
    SHAPE: ClassVar[Shape] = Shape(of_process=True)
    id: int = tag(1)
    cols: int = tag(2)
    rows: int = tag(3)


class Signal(Opener):
    type: ClassVar[Type] = Type.SIGNAL
    SHAPE: ClassVar[Shape] = Shape(of_process=True)
    id: int = tag(1)
    signal: int = tag(2)
    scope: int = tag(3, default=0)


class Processes(Opener):
    type: ClassVar[Type] = Type.PROCESSES
    SHAPE: ClassVar[Shape] = Shape(max_replies=MAX_PROCESSES + 1, max_reply_bytes=16 << 20)


class ProcessEntry(Message):
    id: int = tag(1)
    pid: int = tag(2)
    started_ms: int = tag(3)
    argv: tuple[bytes, ...] = tag(4, default=())
    status: str = tag(5)
    exit_code: int | None = tag(6, default=None)
    signal: int | None = tag(7, default=None)
    stdout_bytes: int = tag(8)
    stderr_bytes: int = tag(9)
    user: str = tag(10, default="")
    cols: int | None = tag(11, default=None)
    rows: int | None = tag(12, default=None)
    oom_kills: int = tag(13, default=0)


class Env(Opener):
    type: ClassVar[Type] = Type.ENV
    set: tuple[bytes, ...] = tag(1, default=(), secret=True)
    unset: tuple[bytes, ...] = tag(2, default=())


class EnvReply(Message):
    env: tuple[bytes, ...] = tag(1, default=(), secret=True)


class Life(Opener):
    type: ClassVar[Type] = Type.LIFE
    deadline_ms: int | None = tag(1, default=None)
    lease: int | None = tag(2, default=None)
    end: int | None = tag(3, default=None)
    idle_ms: int | None = tag(4, default=None)
    grace_ms: int | None = tag(5, default=None)


class LifeReply(Message):
    remaining_ms: int = tag(1)
    leased: int = tag(2)
    uptime_ms: int = tag(3)
    idle_ms: int = tag(4, default=-1)
    idle_for_ms: int = tag(5, default=0)


class LastWords(Message):
    """What an agent leaves in a file of the host when the sandbox ends in order; while it runs, a note of its work."""

    type: ClassVar[Type | None] = Type.WORDS
    reason: str = tag(1)
    at_ms: int = tag(2)
    env_count: int | None = tag(3, default=None)
    env: tuple[bytes, ...] = tag(4, default=(), secret=True)


def parse_last_words(data: bytes) -> LastWords | None:
    """What the file says; None for an empty one, or one with a note: the agent was killed.

    The file is the sandbox's word, so anything but one whole frame with a known reason and an environment that is
    complete or left out (`env_count` is None) raises FrameError or FieldError.
    """
    if not data:
        return None
    words = _words(data)
    if words.reason in AT_WORK:
        return None
    if words.reason not in ("deadline", "idle", "end", "lease", "terminated"):
        raise FieldError(f"an end for no known reason: {words.reason[:40]!r}")
    if (words.env_count or 0) != len(words.env):
        raise FieldError(f"{len(words.env)} variables instead of {words.env_count}")
    for pair in words.env:
        if pair.find(b"=") < 1 or b"\0" in pair:
            raise FieldError("a variable that is not NAME=VALUE")
    return words


def parse_note(data: bytes) -> LastWords | None:
    """What the same file says while the sandbox runs; None for an empty one, or one with last words.

    Its `reason` is `at_work`, or `at_rest` and `at_ms` is when it last was at work. It is the sandbox's word as well.

    Raises FrameError, FieldError.
    """
    words = _words(data) if data else None
    return words if words is not None and words.reason in AT_WORK else None


def _words(data: bytes) -> LastWords:
    decoder = Decoder()
    frames = list(decoder.feed(data[:LAST_WORDS_LIMIT]))
    if len(frames) != 1 or decoder.pending or len(data) > LAST_WORDS_LIMIT:
        raise FrameError("last words are one whole frame")
    if frames[0].stream != 0 or frames[0].type != Type.WORDS:
        raise FrameError("last words are a WORDS frame on stream 0")
    return LastWords.decode(frames[0].payload)


class Stats(Opener):
    type: ClassVar[Type] = Type.STATS


class StatsReply(Message):
    disk_total: int = tag(1)
    disk_used: int = tag(2)
    net_rx: int = tag(3)
    net_tx: int = tag(4)
    processes: int = tag(5)


class Ports(Opener):
    type: ClassVar[Type] = Type.PORTS
    SHAPE: ClassVar[Shape] = Shape(max_replies=MAX_PORTS + 1, max_reply_bytes=8 << 20)


class PortEntry(Message):
    port: int = tag(1)
    address: str = tag(2)
    uid: int = tag(3, default=0)


class Dial(Opener):
    type: ClassVar[Type] = Type.DIAL
    SHAPE: ClassVar[Shape] = Shape(channels=(0,), input=True, greets=True, max_replies=2)
    port: int = tag(1)
    address: str | None = tag(2, default=None)
    window: int = tag(6, default=256 * 1024)


class Dialled(Message):
    address: str = tag(1)


class DialDone(Message):
    sent: int = tag(1)
    received: int = tag(2)
