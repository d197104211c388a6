"""The command `cp`: copies files and directories into, out of, between and within sandboxes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.paths import Place, local_errors, parse_place
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json
from skerry.cli.terminal.progress import progress_bar

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.cli.copy import How
    from skerry.core import FileInfo, Transfer


def cp(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST", help="Local paths or SANDBOX:PATH; - is stdin or stdout.", show_default=False
        ),
    ],
    merge: Annotated[bool, typer.Option("--merge", help="Add to a directory that exists.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Make a directory that exists equal to SRC.")] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="NAME", help="Leave out everything with this name, at any depth. Repeatable."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted upload of one file.")] = False,
    user: options.User = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Copy files and directories into and out of sandboxes.

    SANDBOX:PATH is in a sandbox, relative to its working directory; anything else is local (./a:b for a name with a
    colon). SRC and DST may both be in sandboxes, in one or in two. - for SRC is stdin, for DST stdout.

    \b
    Where SRC goes:
      DST is a directory     into it, as DST/name; the same with several SRC
      DST ends with /        the same; a missing directory is made
      DST is a file          a file takes its place, a directory is an error
      DST does not exist     it becomes DST; missing directories are made
        SRC is . or ends /.    its contents go into DST; what DST has stays

    A directory that would take the place of a directory is an error unless you say how: --merge adds to it and
    overwrites files of the same name, --replace makes it equal to SRC and removes the rest. With either, a directory
    goes to DST itself, not into it. The copy keeps modes, times and links. Each SRC appears complete under its name or
    not at all (with --merge: each file). Sockets, FIFOs and devices are left out and named on stderr.

    \b
    Example:
      skerry cp report.py my-box:.
      skerry cp my-box:out/report.pdf .
      skerry cp --exclude .git . my-box:/workspace
      skerry cp --replace src my-box:/workspace/src
      tar c . | skerry cp - my-box:/tmp/all.tar

    \b
    Exit codes:
      0  everything was copied, except what stderr names as left out
        1  a SRC could not be copied; those before it were copied, those after it were not
    """
    if len(paths) < 2:
        raise typer.BadParameter("give at least one SRC, and DST")
    if merge and replace:
        raise typer.BadParameter("give --merge or --replace, not both")

    async def work() -> None:
        from skerry.cli.copy import How

        how = How(merge=merge, replace=replace, exclude=tuple(exclude or ()), resume=resume, user=user)
        *sources, target = [parse_place(text) for text in paths]
        _check(sources, target, how)
        with local_errors():
            async with AsyncExitStack() as stack:
                done = await Copier(stack, how, bar=not quiet and output is Format.TEXT).copy_all(sources, target)
        if output is Format.JSON:
            print_json(done)

    execute(work, output=output)


def _check(sources: list[Place], target: Place, how: How) -> None:
    """Raises InvalidArgument for a combination that makes no sense."""
    from skerry.core import InvalidArgument

    if target.sandbox is None and any(source.sandbox is None for source in sources):
        raise InvalidArgument(
            "SRC and DST are both local", hint="name a sandbox, like my-box:PATH; plain cp copies local files"
        )
    if len(sources) > 1 and any(place.is_pipe for place in (*sources, target)):
        raise InvalidArgument("- stands for one file", hint="copy one SRC at a time")
    if sources[0].is_pipe and target.wants_directory:
        raise InvalidArgument(f"{target} is a directory, and stdin has no name", hint=f"such as {target}NAME")
    names = [source.name for source in sources if not source.wants_content]
    if double := next((name for name in names if name and names.count(name) > 1), None):
        raise InvalidArgument(f"two of SRC are called {double!r}", hint="copy them one at a time, to different names")
    if how.replace and len(sources) > 1 and any(source.wants_content for source in sources):
        raise InvalidArgument("DST cannot be equal to several SRC", hint="copy one at a time, or use --merge")
    if how.resume and (target.sandbox is None or len(sources) > 1 or sources[0].sandbox or sources[0].is_pipe):
        raise InvalidArgument(
            "--resume is for the upload of one file", hint="leave it out: the copy starts from the beginning"
        )


class Copier:
    """Copies between places of any kind; it connects to each sandbox once."""

    def __init__(self, stack: AsyncExitStack, how: How, *, bar: bool) -> None:
        self._stack, self._how, self._bar = stack, how, bar
        self._boxes: dict[str, AsyncSandbox] = {}

    async def copy_all(self, sources: list[Place], target: Place) -> list[dict[str, object]]:
        """What was copied where. Every mistake that can be found in advance is found before the first byte moves."""
        from skerry.core import FileInfo

        plans = await self._plan(sources, target)
        done: list[dict[str, object]] = []
        for source, place, merge in plans:
            transfer = await self._copy(source, place, merge=merge)
            where = {"source": source.text, "target": place.text}
            if isinstance(transfer, FileInfo):  # copied inside the sandbox: no bytes passed through here
                done.append(where | {"info": asdict(transfer)})
                continue
            for skipped in transfer.skipped:
                if skipped.reason != "excluded":  # the user asked for that
                    note(f"left out: {skipped.path} ({skipped.reason})")
            if transfer.xattrs_lost:
                note(f"{transfer.xattrs_lost} extended attributes could not be kept")
            done.append(where | asdict(transfer))
        return done

    async def _box(self, name: str) -> AsyncSandbox:
        from skerry.cli.commands.sandboxes import connect

        if name not in self._boxes:
            self._boxes[name] = await self._stack.enter_async_context(connect(name))
        return self._boxes[name]

    async def _kind(self, place: Place) -> str | None:
        """Whether it is a `dir`, a `file` or something else; None: it does not exist."""
        from skerry.core import FileMissing, NotADirectory

        if place.sandbox is None:
            return place.local_kind()
        box, path = await self._box(place.sandbox), place.path.rstrip("/") or "/"
        try:
            return (await box.files.stat(path, user=self._how.user)).type
        except (FileMissing, NotADirectory):
            return None

    async def _plan(self, sources: list[Place], target: Place) -> list[tuple[Place, Place, bool]]:
        """For each source its place, and whether the present content of that place stays."""
        from skerry.core import NotADirectory

        there = await self._kind(target)
        if there not in (None, "dir") and (len(sources) > 1 or target.wants_directory):
            raise NotADirectory(f"{target} is not a directory", hint="name a directory to put things into")
        many = len(sources) > 1 or target.wants_directory
        return [await self._place(source, target, there, many=many) for source in sources]

    async def _place(self, source: Place, target: Place, there: str | None, *, many: bool) -> tuple[Place, Place, bool]:
        from skerry.core import AlreadyExists, FileMissing, InvalidArgument, NotADirectory

        kind = await self._kind(source)
        if kind is None:
            raise FileMissing(f"{source} does not exist", hint="check the path")
        tree, how = kind == "dir", self._how
        if how.resume and tree:
            raise InvalidArgument(
                "--resume is for the upload of one file", hint="leave it out: the copy starts from the beginning"
            )
        content = tree and source.wants_content
        exact = tree and (how.merge or how.replace or content)
        place = target
        if not (source.is_pipe or target.is_pipe or content) and (many or (there == "dir" and not exact)):
            name = source.local_name() if source.sandbox is None else source.name
            if not name:
                raise InvalidArgument(f"{source} gives no name for its copy in {target}", hint="give its full path")
            place = target.within(name)
            there = await self._kind(place)
        if tree and target.is_pipe:
            raise InvalidArgument(f"{source} is a directory, and stdout takes one file", hint="name a directory")
        if tree and there == "dir" and not exact:
            raise AlreadyExists(f"{place} already exists", hint="--merge adds to it, --replace makes it equal")
        if tree and there not in (None, "dir"):
            raise NotADirectory(
                f"{place} is a file, and {source} a directory", hint="remove it, or choose another name"
            )
        return source, place, how.merge or (content and not how.replace)

    async def _copy(self, source: Place, target: Place, *, merge: bool) -> Transfer | FileInfo:
        from skerry.cli import copy

        how = self._how
        into = None if target.sandbox is None else await self._box(target.sandbox)
        out_of = None if source.sandbox is None else await self._box(source.sandbox)
        piped = source.is_pipe or target.is_pipe
        with progress_bar(source.name or source.text, wanted=self._bar and not piped) as report:
            if out_of is not None and into is not None:
                if out_of.id == into.id and await self._kind(source) != "dir":
                    return await into.files.copy(source.path, target.path, user=how.user)
                return await copy.relay(out_of, source.path, into, target.path, how, merge=merge, report=report)
            if into is not None:
                if piped:
                    return await copy.from_stdin(into, target.path, how)
                return await copy.upload(into, source.path, target.path, how, merge=merge, report=report)
            assert out_of is not None  # _check has made sure
            if piped:
                return await copy.to_stdout(out_of, source.path, how)
            return await copy.download(out_of, source.path, target.path, how, merge=merge, report=report)
