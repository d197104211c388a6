"""What a caller asks to run, checked and turned into a START message before anything is sent."""

from __future__ import annotations

import difflib
import inspect
import math
import shlex
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypedDict, TypeVar

import anyio

from skerry._model import Model
from skerry.core import InvalidArgument, Seconds, check_seconds
from skerry.sdk.commands.output import OUTPUT_LIMIT
from skerry.sdk.connection.stream import Stream
from skerry.wire import INPUT_WINDOW, Start, StartFlags

T = TypeVar("T", str, bytes)

Command = str | Sequence[str]
"""A string goes to the shell, a sequence is the argument list."""
Stdin = bytes | str | Iterable[bytes] | AsyncIterable[bytes] | None
"""None is an empty input."""
TextCallback = Callable[[str], object]
"""Gets text as it comes; may be a coroutine function."""
BytesCallback = Callable[[bytes], object]
"""Gets bytes as they come; may be a coroutine function."""
SandboxPath = str | PurePosixPath

SHELL = "/bin/sh"


class PlaceOptions(TypedDict, total=False):
    """Where and as whom a program runs."""

    cwd: SandboxPath | None
    """The directory it begins in; the sandbox's working directory unless given."""
    env: Mapping[str, str] | None
    """Variables to set beside those of the sandbox; they take precedence."""
    user: str | None
    """The sandbox's user to run as."""


class CommandOptions(PlaceOptions, total=False):
    """The options of every command."""

    timeout: Seconds | None
    """Seconds, or text such as "5m", after which it is killed with all its descendants."""
    sudo: bool
    """Run it as the sandbox's own root."""


class ExecOptions(CommandOptions, total=False):
    """The options of a command that the caller waits for."""

    stdin: Stdin
    """Its input; None is an empty one."""
    output_limit: int
    """How many bytes of each stream are kept at most; beyond that the middle is dropped and counted."""


PLACE_OPTIONS = PlaceOptions.__optional_keys__
COMMAND_OPTIONS = CommandOptions.__optional_keys__
COLS, ROWS = 80, 24
"""The size of a terminal that nobody gives one."""
MAX_SIDE = 10_000
"""Columns or rows of a terminal."""


class Request(Model, kw_only=False):
    """A checked command: the message, its input, and what the client keeps of its output."""

    command: str
    start: Start
    stdin: Stdin
    timeout: float | None
    output_limit: int


def check_options(call: str, given: Mapping[str, object], known: frozenset[str]) -> None:
    """Raises TypeError for an option that does not exist, as Python does for an argument, with the nearest one."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{hint}")


def build(
    command: Command,
    *,
    cwd: SandboxPath | None = None,
    env: Mapping[str, str] | None = None,
    timeout: Seconds | None = None,
    user: str | None = None,
    sudo: bool = False,
    stdin: Stdin = None,
    output_limit: int = OUTPUT_LIMIT,
    foreground: bool = True,
    input: bool = False,
    size: tuple[int, int] | None = None,
) -> Request:
    """Check the options of a command; with a `size` it gets a terminal. Raises InvalidArgument."""
    argv = check_argv(command)
    timeout = None if timeout is None else check_seconds(timeout)
    flags = (StartFlags.FOREGROUND if foreground else 0) | (StartFlags.STDIN if input or stdin is not None else 0)
    if size is not None:
        flags |= StartFlags.STDIN | StartFlags.TERMINAL
        check_size(*size)
    start = Start(
        argv=tuple(encode(part, "an argument") for part in argv),
        env=encode_env(env) if env else (),
        cwd=b"" if cwd is None else encode_path(cwd, "cwd"),
        user=check_user(user, sudo=sudo) if user is not None or sudo else "",
        timeout_ms=0 if timeout is None else math.ceil(timeout * 1000),
        flags=int(flags),
        cols=None if size is None else size[0],
        rows=None if size is None else size[1],
    )
    name = command if isinstance(command, str) else shlex.join(argv)
    return Request(name, start, stdin, timeout, check_whole(output_limit, "output_limit", least=0))


def build_exec(call: str, command: Command, options: ExecOptions) -> Request:
    """The request of a command that the caller waits for. Raises TypeError, InvalidArgument."""
    check_options(call, options, ExecOptions.__optional_keys__)
    return build(command, **options)


def check_argv(command: object) -> Sequence[str]:
    if isinstance(command, str):
        if not command:
            raise InvalidArgument("the command is empty")
        return (SHELL, "-c", command)
    if not isinstance(command, Sequence) or isinstance(command, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a command is a string or a list of strings, not {type(command).__name__}")
    for part in command:
        if not isinstance(part, str):
            raise InvalidArgument(f"an argument must be a string, not {type(part).__name__}")
    if not command or not command[0]:
        raise InvalidArgument("the command has no program")
    return command


def check_whole(value: object, what: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{what} must be a whole number of {least} or more, not {value!r}")
    return value


def check_size(cols: object, rows: object) -> None:
    for value, what in (cols, "cols"), (rows, "rows"):
        if check_whole(value, what, least=1) > MAX_SIDE:
            raise InvalidArgument(f"{what} must be at most {MAX_SIDE}, not {value}")


def encode(text: str, what: str) -> bytes:
    """Text as the bytes the sandbox sees; those that are not UTF-8 are surrogates. Raises InvalidArgument."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} cannot be encoded: {error}") from None
    if b"\0" in data:
        raise InvalidArgument(f"{what} contains a NUL byte")
    return data


def decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def encode_path(path: object, what: str = "path") -> bytes:
    if not isinstance(path, str | PurePosixPath):
        raise InvalidArgument(f"{what} must be a string or a PurePosixPath, not {type(path).__name__}")
    data = encode(str(path), what)
    if not data:
        raise InvalidArgument(f"{what} is empty")
    return data


def check_env_name(name: object) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise InvalidArgument(f"{name!r} is not a name for an environment variable")
    return name


def encode_env(env: object) -> tuple[bytes, ...]:
    """`K=V` for each variable. Raises InvalidArgument; the message never has the value."""
    if not isinstance(env, Mapping):
        raise InvalidArgument(f"env must be a mapping of names to values, not {type(env).__name__}")
    pairs = []
    for name, value in env.items():
        check_env_name(name)
        if not isinstance(value, str):
            raise InvalidArgument(f"the value of {name} must be a string, not {type(value).__name__}")
        pairs.append(encode(f"{name}={value}", f"the variable {name}"))
    return tuple(pairs)


def check_user(user: object, *, sudo: bool = False) -> str:
    if sudo and user not in (None, "root"):
        raise InvalidArgument(f"sudo=True runs as root, so user={user!r} cannot be given too")
    if sudo:
        return "root"
    if user is None:
        return ""
    if not isinstance(user, str) or not user or "\0" in user:
        raise InvalidArgument(f"{user!r} is not a user")
    return user


def small_stdin(stdin: Stdin) -> bytes | None:
    """The input as bytes if it needs no credit, so that it leaves with the request."""
    if isinstance(stdin, str):
        stdin = stdin.encode("utf-8", "surrogateescape")
    return stdin if isinstance(stdin, bytes) and len(stdin) <= INPUT_WINDOW else None


async def feed(stream: Stream, source: Stdin) -> bool:
    """Send `source` and END on the stream's input. False: the other side ended first.

    A sequence is taken as it is, other iterables are advanced in a thread because they may block.
    Raises InvalidArgument for items that are not bytes, and whatever the iterable raises.
    """
    if isinstance(source, str):
        source = source.encode("utf-8", "surrogateescape")
    if source is None or isinstance(source, bytes):
        return await stream.send(source or b"", end=True)
    async for part in _parts(source):
        if not await stream.send(check_bytes(part)):
            return False
    return await stream.send(b"", end=True)


async def _parts(source: object) -> AsyncIterator[object]:
    if isinstance(source, bytearray | memoryview):
        yield source
    elif isinstance(source, AsyncIterable):
        async for part in source:
            yield part
    elif isinstance(source, Sequence):
        for part in source:
            yield part
    elif isinstance(source, Iterable):
        iterator, end = iter(source), object()
        while (part := await anyio.to_thread.run_sync(next, iterator, end)) is not end:
            yield part
    else:
        raise InvalidArgument(f"cannot read bytes from {type(source).__name__}")


def check_bytes(part: object) -> bytes | bytearray | memoryview:
    if not isinstance(part, bytes | bytearray | memoryview):
        raise InvalidArgument(f"an iterable of bytes is needed, it gave {type(part).__name__}")
    return part


async def call(callback: Callable[[T], object], data: T) -> None:
    """Call a callback that may be a coroutine function."""
    outcome = callback(data)
    if inspect.isawaitable(outcome):
        await outcome
