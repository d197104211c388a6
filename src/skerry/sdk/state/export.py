"""The state of a sandbox as a file, bytes or stream, and a sandbox from it."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import BinaryIO, cast

from skerry.archive import Key
from skerry.core import (
    ExportInfo,
    InterruptiblePipe,
    InvalidArgument,
    Portable,
    Provider,
    SandboxInfo,
    SandboxSpec,
    Unsupported,
    in_thread,
)
from skerry.sdk.blocking.portal import warn_caller
from skerry.trees import disk_errors

KeyOptions = Key | bytes | str
"""A key, its 32 bytes, or where it is: `file:PATH`, `env:NAME`, `command:PROGRAM ARGS`."""
StateTarget = str | os.PathLike[str] | BinaryIO
"""Where a state is written: a path, or anything with a `write` for bytes."""
StateSource = str | os.PathLike[str] | bytes | BinaryIO
"""Where a state comes from: a path, the bytes, or anything with a `read` for bytes."""
StateProgress = Callable[[int], object]
"""Gets the bytes of content so far, in a thread; what it raises ends the work."""


def portable(provider: Provider, option: str) -> Portable:
    """Raises Unsupported."""
    if not isinstance(provider, Portable):
        raise Unsupported(f"the provider {provider.name!r} has no state as a file", option=option)
    return provider


async def read_key(key: KeyOptions | None) -> bytes | None:
    """Its 32 bytes; asking a command for them may take a while. Raises InvalidArgument."""
    return None if key is None else (await in_thread(lambda: Key.of(key))).secret()


async def export(
    provider: Provider,
    source_id: str,
    target: StateTarget | None,
    key: KeyOptions | None,
    on_progress: StateProgress | None,
    *,
    warn: bool = True,
) -> tuple[ExportInfo, bytes | None]:
    """Write a sandbox or snapshot; without a target it is returned. `warn` of variables that anybody can read there."""
    chosen, secret = portable(provider, "export_state"), await read_key(key)

    async def write(stream: BinaryIO) -> ExportInfo:
        info = await chosen.export_state(source_id, stream, key=secret, on_progress=_teller(on_progress))
        if warn and (text := env_warning(info)):
            warn_caller(text)
        return info

    if target is None:
        buffer = io.BytesIO()
        return await write(buffer), buffer.getvalue()
    if not isinstance(target, str | os.PathLike):
        if not callable(getattr(target, "write", None)):
            raise InvalidArgument(f"a state is written to a path or a binary stream, not to {type(target).__name__}")
        return await write(target), None
    async with _opened(_replacing(os.fspath(target))) as file:
        info = await write(file)
    return info, None


def env_warning(info: ExportInfo) -> str | None:
    """What to tell about an export that anybody can read."""
    if info.encrypted or not info.env_names:
        return None
    return (
        f"the export has the values of {', '.join(sorted(info.env_names))} in it, unencrypted; give a key to encrypt it"
    )


async def import_(
    provider: Provider,
    source: StateSource,
    spec: SandboxSpec,
    key: KeyOptions | None,
    on_progress: StateProgress | None = None,
) -> SandboxInfo:
    """A sandbox from what `export` wrote."""
    chosen, secret = portable(provider, "import_state"), await read_key(key)
    async with _opened(_reading(source)) as stream:
        return await chosen.import_state(stream, spec, key=secret, on_progress=_teller(on_progress))


def _teller(on_progress: StateProgress | None) -> Callable[[int], None] | None:
    if on_progress is None:
        return None

    def tell(done: int) -> None:
        on_progress(done)

    return tell


@asynccontextmanager
async def _opened(file: AbstractContextManager[BinaryIO]) -> AsyncIterator[BinaryIO]:
    """Open the file in a thread: a disk may take its time. If cancelled, close it as after any error."""
    opened = list[BinaryIO]()
    try:
        await in_thread(lambda: opened.append(file.__enter__()))
        yield opened[0]
    except BaseException as error:
        if opened:
            await in_thread(partial(file.__exit__, type(error), error, error.__traceback__))
        raise
    await in_thread(partial(file.__exit__, None, None, None))


@contextmanager
def _reading(source: StateSource) -> Iterator[BinaryIO]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield io.BytesIO(source)
    elif isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        with disk_errors(f"reading {path}"):
            special = _is_special(path)
            file = None if special else open(path, "rb")  # noqa: SIM115
        with closing(file or InterruptiblePipe(path, "r")) as opened:
            yield cast(BinaryIO, opened)
    elif callable(getattr(source, "read", None)):
        yield source
    else:
        raise InvalidArgument(
            f"a state is read from a path, bytes or a binary stream, not from {type(source).__name__}"
        )


@contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when all is well. Until then it has no name, so it ends with us.

    What is there and no regular file, such as a pipe, is written to as it is. Raises FileError.
    """
    with disk_errors(f"writing {path}"):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and _is_special(path):
            with closing(InterruptiblePipe(path, "w")) as special:
                yield cast(BinaryIO, special)
            return
        place = os.path.realpath(path)
        directory = os.path.dirname(place)
        beside = os.path.join(directory, f".skerry-{secrets.token_hex(8)}")
        nameless = True
        try:
            fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # a file system without them; what is wrong otherwise is wrong here too
            nameless = False
            fd = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(fd)  # everything is on disk before it gets its name, and then the name
                if nameless:
                    _give_name(fd, directory, os.path.basename(beside))
                os.rename(beside, place)
                _flush_directory(directory)
            except BaseException:
                if os.path.lexists(beside):
                    os.unlink(beside)
                raise


def _give_name(fd: int, directory: str, name: str) -> None:
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with a directory does Python follow the link, which is to the file itself.
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=at, follow_symlinks=True)
    finally:
        os.close(at)


def _flush_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_special(path: str) -> bool:
    """Whether it exists and is neither a file nor a directory. Raises OSError."""
    mode = os.stat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
