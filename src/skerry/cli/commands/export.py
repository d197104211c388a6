"""The commands `export`, `import` and `archive`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from skerry.cli import options
from skerry.cli.commands.lifecycle import Sandboxes, each
from skerry.cli.commands.sandboxes import print_made
from skerry.cli.create_options import Given, with_options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, size
from skerry.cli.terminal.progress import Report, progress_bar

if TYPE_CHECKING:
    from skerry.core import ExportInfo

Key = options.Key


def export(
    source: Annotated[str, typer.Argument(metavar="SANDBOX|SNAPSHOT", help="The id or name.", show_default=False)],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; - is stdout.", show_default=False)],
    key: Key = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Write a sandbox or snapshot as one file.

    The file holds all files and variables, and never secrets.

    A running sandbox keeps running. `skerry import` makes a sandbox from the file, on this machine or another.

    \b
    Example:
      skerry export my-box my-box.skerry
      skerry export my-box my-box.skerry --key file:/root/key
      skerry export my-box - | ssh other skerry import -
    """

    async def work() -> None:
        from skerry.core import InvalidArgument, registry
        from skerry.sdk import env_warning, export

        to_stdout = file == "-"
        if to_stdout and sys.stdout.isatty():
            raise InvalidArgument("an export cannot be written to a terminal", hint="name a file, or use a pipe")
        provider = registry.provider()
        source_id = await _find(source)
        with progress_bar(source, wanted=True) as report:
            tell = None if report is None else (lambda done: report(done, None))
            target = _stdout() if to_stdout else file
            info, _ = await export(provider, source_id, target, key, tell, warn=False)
        if to_stdout:
            sys.stdout.buffer.flush()
        if text := env_warning(info):
            note(f"warning: {text}")
        if output is Format.JSON and not to_stdout:
            print_json(info)
        else:
            note(_line(info))

    execute(work, output=output)


@with_options(
    "name", "env", "lifetime", "on_timeout", "memory", "cpu", "pids", "disk", "volume", "network", "encrypted"
)
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file that `export` wrote; - is stdin.", show_default=False)
    ],
    given: Given,
    key: Key = None,
    output: options.Output = Format.TEXT,
) -> None:
    """Make a sandbox from an exported file and print its id.

    A damaged file is refused.

    \b
    Example:
      skerry import my-box.skerry --name my-box
      skerry import - < my-box.skerry
    """

    async def work() -> None:
        from skerry import AsyncSandbox

        with _opened(file) as (source, total), progress_bar(file, wanted=True) as report:
            box = await AsyncSandbox.create(
                import_state=source if report is None else cast(BinaryIO, _Counted(source, total, report)),
                key=key,
                **given(),
            )
        try:
            await print_made(box, output)
        finally:
            await box.close()

    execute(work, output=output)


def archive(sandboxes: Sandboxes, key: Key = None, output: options.Output = Format.TEXT) -> None:
    """Put sandboxes into cold storage; print their ids.

    Skerry stops each sandbox and compresses its files. `skerry start`, or the next command in one, brings it back.
    With --key, or SKERRY_ARCHIVE_KEY, the archive is encrypted, and `skerry start` needs the same key.

    \b
    Example:
      skerry archive my-box
      skerry archive my-box --key env:MY_KEY

    \b
    Exit codes:
      0  all of them are archived
      1  one could not be; the others are
    """
    each(sandboxes, lambda box: box.archive(key=key), output)


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file to read, and its size if that is known. A signal can interrupt reading a pipe."""
    from skerry.core import InterruptiblePipe
    from skerry.trees import disk_errors

    with disk_errors("reading stdin" if file == "-" else f"reading {file}"):
        info = os.fstat(sys.stdin.fileno()) if file == "-" else os.stat(file)
    place = sys.stdin.fileno() if file == "-" else file
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        with closing(InterruptiblePipe(place, "r")) as pipe:
            yield cast(BinaryIO, pipe), None
        return
    with disk_errors(f"reading {file}"):
        opened = open(place, "rb", closefd=file != "-")  # noqa: SIM115
    with opened:
        yield opened, info.st_size


def _stdout() -> BinaryIO:
    from skerry.core import InterruptiblePipe

    sys.stdout.flush()
    if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
        return sys.stdout.buffer
    return cast(BinaryIO, InterruptiblePipe(sys.stdout.fileno(), "w"))


class _Counted:
    """A file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, total: int | None, report: Report) -> None:
        self._file, self._total, self._report, self._done = file, total, report, 0

    def interrupt(self) -> None:
        from skerry.core import Interruptible

        file: object = self._file
        if isinstance(file, Interruptible):
            file.interrupt()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._done += len(data)
        self._report(self._done, self._total)
        return data


async def _find(source: str) -> str:
    """The id of a sandbox or snapshot. Raises SandboxNotFound, SnapshotNotFound."""
    from skerry import AsyncSandbox, AsyncSnapshots
    from skerry.core import SandboxNotFound, SnapshotNotFound, is_snapshot_id

    if is_snapshot_id(source):
        return (await AsyncSnapshots().get(source)).id
    try:
        return (await AsyncSandbox.find(source)).id
    except SandboxNotFound:
        try:
            return (await AsyncSnapshots().get(source)).id
        except SnapshotNotFound:
            pass
        raise SandboxNotFound(
            f"there is no sandbox and no snapshot {source!r}", hint="`skerry ps` and `skerry snapshot ls` list them"
        ) from None


def _line(info: ExportInfo) -> str:
    left_out = f", {info.skipped} sockets left out" if info.skipped else ""
    how = "encrypted" if info.encrypted else "not encrypted"
    return f"{info.files} files of {size(info.content_bytes)} as {size(info.bytes_written)}, {how}{left_out}"
