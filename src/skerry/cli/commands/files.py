"""The commands `cat` and `ls`: a sandbox's files."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import print_json, say

if TYPE_CHECKING:
    from skerry.core import FileInfo

Where = Annotated[
    str, typer.Argument(metavar="SANDBOX[:PATH]", help="The sandbox's id or name, and a path.", show_default=False)
]
Path = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="The path, if it is not given with SANDBOX.", show_default=False)
]


def cat(where: Where, path: Path = None, user: options.User = None) -> None:
    """Write a file of a sandbox to stdout, byte for byte.

    \b
    Example:
      skerry cat my-box:/workspace/report.csv > report.csv
      skerry cat my-box report.csv
    """

    async def work() -> None:
        from skerry.cli.commands.sandboxes import connect
        from skerry.cli.terminal.stdio import write
        from skerry.core import InvalidArgument

        sandbox, file = _split(where, path)
        if file is None:
            raise InvalidArgument("the path is missing", hint="use SANDBOX:PATH")
        async with connect(sandbox) as box:
            async for data in box.files.read_stream(file, user=user):
                await write(1, data)

    execute(work, output=Format.TEXT)


def list_(
    where: Where,
    path: Path = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show mode, owner, size and time too.")] = False,
    user: options.User = None,
    output: options.Output = Format.TEXT,
) -> None:
    """List a directory of a sandbox.

    Without PATH, it lists the working directory. Entries are sorted by name; links are shown, not followed.

    \b
    Example:
      skerry ls my-box
      skerry ls -l my-box:/etc
    """

    async def work() -> None:
        from skerry.cli.commands.sandboxes import connect

        sandbox, directory = _split(where, path)
        async with connect(sandbox) as box:
            entries = await box.files.list(directory or ".", user=user)
        if output is Format.JSON:
            print_json(entries)
        elif long:
            _print_long(entries)
        else:
            say(*(entry.name for entry in entries))

    execute(work, output=output)


def _split(where: str, path: str | None) -> tuple[str, str | None]:
    """`SANDBOX PATH` and `SANDBOX:PATH` are the same. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    sandbox, colon, after = where.partition(":")
    if colon and path is not None:
        raise InvalidArgument(f"two paths: {after!r} and {path!r}", hint="give the path once")
    return sandbox, path if path is not None else after or None


def _print_long(entries: list[FileInfo]) -> None:
    widths = [max((len(text) for text in column), default=0) for column in zip(*map(_owner_size, entries), strict=True)]
    lines = []
    for entry in entries:
        owner, group, length = (text.rjust(width) for text, width in zip(_owner_size(entry), widths, strict=True))
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.mtime))
        target = f" -> {entry.target}" if entry.target is not None else ""
        lines.append(f"{_mode(entry)} {owner} {group} {length} {when} {entry.name}{target}")
    say(*lines)


def _owner_size(entry: FileInfo) -> tuple[str, str, str]:
    return entry.owner or str(entry.uid), entry.group or str(entry.gid), str(entry.size)


def _mode(entry: FileInfo) -> str:
    kinds = {
        "file": stat.S_IFREG,
        "dir": stat.S_IFDIR,
        "link": stat.S_IFLNK,
        "fifo": stat.S_IFIFO,
        "socket": stat.S_IFSOCK,
        "char": stat.S_IFCHR,
        "block": stat.S_IFBLK,
    }
    return stat.filemode(kinds[entry.type] | entry.mode)
