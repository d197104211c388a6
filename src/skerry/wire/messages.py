"""Messages: each a frozen dataclass whose fields carry their tag. See docs/design/wire.md."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import IntFlag
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

from skerry.wire.fields import FieldError, decode_fields, decode_int, encode_field, encode_int
from skerry.wire.frames import Type

GENERATION = 1

_ENTRY = struct.Struct("<I")


def _tag(number: int, *, default: Any = MISSING) -> Any:
    if default is MISSING:
        return field(metadata={"tag": number})
    return field(default=default, metadata={"tag": number})


class OpenFlags(IntFlag):
    """The `flags` of openers; each opener's own numbers, by name."""

    FOREGROUND = 1
    STDIN = 2
    VIEW = 1
    APPEND = 1
    WRITE_PARENTS = 2
    NEW = 4
    NOFOLLOW = 1
    PARENTS = 1
    RECURSIVE = 1
    NOREPLACE = 1


_MESSAGES: dict[str, type[Message]] = {}
M = TypeVar("M", bound="type[Message]")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(_tag,))
def _message(cls: M) -> M:
    cls = dataclass(frozen=True, kw_only=True, slots=True)(cls)  # type: ignore[assignment]
    _MESSAGES[cls.__name__] = cls
    return cls


class Message:
    """A payload made of fields. `type` is set on those that have a frame type of their own."""

    __slots__ = ()
    type: ClassVar[Type | None] = None

    def encode(self) -> bytes:
        parts = []
        for name, tag, kind, _ in _plan(type(self)):
            value = getattr(self, name)
            if value is not None:
                parts.append(_ENCODE[kind](tag, value))
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises FieldError for a malformed payload or a missing field."""
        found = decode_fields(payload)
        values = {}
        for name, tag, kind, required in _plan(cls):
            if tag in found:
                values[name] = _DECODE[kind](found[tag])
            elif required:
                raise FieldError(f"{cls.__name__} without {name}")
        return cls(**values)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


_ENCODE: dict[str, Callable[[int, Any], bytes]] = {
    "int": encode_int,
    "bytes": encode_field,
    "str": lambda tag, value: encode_field(tag, value.encode("utf-8", "surrogateescape")),
    "list": lambda tag, value: b"".join(encode_field(tag, item) for item in value),
}
_DECODE: dict[str, Callable[[list[bytes]], Any]] = {
    "int": lambda values: decode_int(values[-1]),
    "bytes": lambda values: values[-1],
    "str": lambda values: _text(values[-1]),
    "list": tuple,
}
_KINDS = {int: "int", bytes: "bytes", str: "str", tuple[bytes, ...]: "list", int | None: "int", str | None: "str"}


_PLANS: dict[type[Message], tuple[tuple[str, int, str, bool], ...]] = {}


def _plan(cls: type[Message]) -> tuple[tuple[str, int, str, bool], ...]:
    """Name, tag, kind and whether it must be there, for each field of a message."""
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type[Message]) -> tuple[tuple[str, int, str, bool], ...]:
    hints = get_type_hints(cls)
    return tuple(
        (item.name, item.metadata["tag"], _KINDS[hints[item.name]], item.default is MISSING)
        for item in fields(cls)  # type: ignore[arg-type]
    )


def schema() -> dict[str, list[str]]:
    """Every message with its tags, for the snapshot test."""
    return {
        name: [f"{tag}:{field_name}:{kind}{'' if must else '?'}" for field_name, tag, kind, must in _plan(cls)]
        for name, cls in sorted(_MESSAGES.items())
    }


@_message
class Boot(Message):
    type: ClassVar[Type | None] = Type.BOOT
    token: bytes = _tag(1)
    env: tuple[bytes, ...] = _tag(2, default=())
    workdir: bytes = _tag(3, default=b"/")
    user: str = _tag(4, default="root")
    deadline_ms: int = _tag(5, default=0)


@_message
class Hello(Message):
    type: ClassVar[Type | None] = Type.HELLO
    generation: int = _tag(1)
    token: bytes = _tag(2, default=b"")
    version: str = _tag(3, default="")
    uptime_ms: int = _tag(4, default=0)


@_message
class Failure(Message):
    type: ClassVar[Type | None] = Type.ERROR
    code: str = _tag(1)
    errno: int = _tag(2, default=0)
    message: str = _tag(3, default="")


@_message
class Empty(Message):
    """A REPLY that says no more than "done"."""


@_message
class Start(Message):
    type: ClassVar[Type | None] = Type.START
    argv: tuple[bytes, ...] = _tag(1)
    env: tuple[bytes, ...] = _tag(2, default=())
    cwd: bytes = _tag(3, default=b"")
    user: str = _tag(4, default="")
    timeout_ms: int = _tag(5, default=0)
    window: int = _tag(6, default=256 * 1024)
    flags: int = _tag(7, default=0)


@_message
class Started(Message):
    id: int = _tag(1)
    pid: int = _tag(2)
    started_ms: int = _tag(3)


@_message
class Exit(Message):
    exit_code: int | None = _tag(1, default=None)
    signal: int | None = _tag(2, default=None)
    status: str = _tag(3)
    duration_us: int = _tag(4)
    stdout_bytes: int = _tag(5)
    stderr_bytes: int = _tag(6)
    oom_kills: int = _tag(7, default=0)


@_message
class Attach(Message):
    type: ClassVar[Type | None] = Type.ATTACH
    id: int = _tag(1)
    since_stdout: int = _tag(2, default=0)
    since_stderr: int = _tag(3, default=0)
    window: int = _tag(6, default=256 * 1024)
    flags: int = _tag(7, default=0)


@_message
class Attached(Message):
    id: int = _tag(1)
    pid: int = _tag(2)
    started_ms: int = _tag(3)
    start_stdout: int = _tag(4)
    start_stderr: int = _tag(5)


@_message
class Signal(Message):
    type: ClassVar[Type | None] = Type.SIGNAL
    id: int = _tag(1)
    signal: int = _tag(2)
    scope: int = _tag(3, default=0)


@_message
class Processes(Message):
    type: ClassVar[Type | None] = Type.PROCESSES


@_message
class ProcessEntry(Message):
    id: int = _tag(1)
    pid: int = _tag(2)
    started_ms: int = _tag(3)
    argv: tuple[bytes, ...] = _tag(4, default=())
    status: str = _tag(5)
    exit_code: int | None = _tag(6, default=None)
    signal: int | None = _tag(7, default=None)
    stdout_bytes: int = _tag(8)
    stderr_bytes: int = _tag(9)
    user: str = _tag(10, default="")


@_message
class Env(Message):
    type: ClassVar[Type | None] = Type.ENV
    set: tuple[bytes, ...] = _tag(1, default=())
    unset: tuple[bytes, ...] = _tag(2, default=())


@_message
class EnvReply(Message):
    env: tuple[bytes, ...] = _tag(1, default=())


@_message
class Life(Message):
    type: ClassVar[Type | None] = Type.LIFE
    deadline_ms: int | None = _tag(1, default=None)
    lease: int | None = _tag(2, default=None)
    end: int | None = _tag(3, default=None)


@_message
class LifeReply(Message):
    remaining_ms: int = _tag(1)
    leased: int = _tag(2)
    uptime_ms: int = _tag(3)


@_message
class Stats(Message):
    type: ClassVar[Type | None] = Type.STATS


@_message
class StatsReply(Message):
    disk_total: int = _tag(1)
    disk_used: int = _tag(2)
    net_rx: int = _tag(3)
    net_tx: int = _tag(4)
    processes: int = _tag(5)


@_message
class FileInfoMessage(Message):
    path: bytes = _tag(1)
    type_name: str = _tag(2)
    size: int = _tag(3)
    mode: int = _tag(4)
    uid: int = _tag(5)
    gid: int = _tag(6)
    mtime_ns: int = _tag(7)
    target: bytes = _tag(8, default=b"")
    inode: int = _tag(9)
    owner: str = _tag(10, default="")
    group: str = _tag(11, default="")


@_message
class Read(Message):
    type: ClassVar[Type | None] = Type.READ
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    offset: int = _tag(3, default=0)
    length: int | None = _tag(4, default=None)
    window: int = _tag(6, default=256 * 1024)


@_message
class ReadDone(Message):
    bytes_read: int = _tag(1)


@_message
class Write(Message):
    type: ClassVar[Type | None] = Type.WRITE
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    mode: int | None = _tag(3, default=None)
    flags: int = _tag(4, default=0)


@_message
class ListDir(Message):
    type: ClassVar[Type | None] = Type.LIST
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    depth: int = _tag(3, default=1)
    window: int = _tag(6, default=256 * 1024)


@_message
class Count(Message):
    count: int = _tag(1)


@_message
class Stat(Message):
    type: ClassVar[Type | None] = Type.STAT
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    flags: int = _tag(3, default=0)


@_message
class MkDir(Message):
    type: ClassVar[Type | None] = Type.MKDIR
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    mode: int | None = _tag(3, default=None)
    flags: int = _tag(4, default=0)


@_message
class Remove(Message):
    type: ClassVar[Type | None] = Type.REMOVE
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    flags: int = _tag(3, default=0)


@_message
class Rename(Message):
    type: ClassVar[Type | None] = Type.RENAME
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    target: bytes = _tag(3)
    flags: int = _tag(4, default=0)


@_message
class Chmod(Message):
    type: ClassVar[Type | None] = Type.CHMOD
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    mode: int = _tag(3)


@_message
class Chown(Message):
    type: ClassVar[Type | None] = Type.CHOWN
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    owner: str | None = _tag(3, default=None)
    group: str | None = _tag(4, default=None)


@_message
class Symlink(Message):
    type: ClassVar[Type | None] = Type.SYMLINK
    path: bytes = _tag(1)
    user: str = _tag(2, default="")
    target: bytes = _tag(3)


def iter_entries(data: bytes | memoryview) -> Iterator[FileInfoMessage]:
    """The directory entries in the bytes of a LIST's DATA frame. Raises FieldError."""
    view, position = memoryview(data), 0
    while position < len(view):
        if len(view) - position < _ENTRY.size:
            raise FieldError("an entry's length is cut off")
        (length,) = _ENTRY.unpack_from(view, position)
        position += _ENTRY.size
        if length > len(view) - position:
            raise FieldError("an entry does not fit in its frame")
        yield FileInfoMessage.decode(bytes(view[position : position + length]))
        position += length
