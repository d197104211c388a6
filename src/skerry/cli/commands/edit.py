"""The command `edit`: a file of a sandbox in your own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.paths import Place, local_errors, parse_place
from skerry.cli.runtime import complete
from skerry.cli.terminal.output import note, print_error

EDITORS = ("sensible-editor", "editor", "nano", "vim", "vi")
"""The editors to try if neither VISUAL nor EDITOR is set."""


def edit(
    where: Annotated[str, typer.Argument(metavar="SANDBOX:PATH", help="The file; it may be new.", show_default=False)],
    user: options.User = None,
) -> None:
    """Edit a file of a sandbox in your editor.

    The editor is $VISUAL, $EDITOR, or the first of sensible-editor, editor, nano, vim and vi that is installed. It
    opens a copy that only you can read. When it ends, a changed text goes back in one step; the file keeps its mode and
    owner. If the file in the sandbox was changed since you opened it, nothing is written: your text stays on this
    machine, and a message says where.

    \b
    Example:
      skerry edit my-box:/workspace/app.py
      VISUAL='code --wait' skerry edit my-box:app.py

    \b
    Exit codes:
      0  the file was written, or there was nothing to write
        1  not written: the editor failed, or the file was changed since, or could not be read or written
    """
    session = Edit(where, user)
    code = complete(session.fetch, output=Format.TEXT)
    if code == 0:
        code = session.run_editor()
        if code == 0 and session.is_changed():
            code = complete(session.send, output=Format.TEXT)
        else:
            session.forget()
    raise SystemExit(code)


class Edit:
    """One file on its way out, through the editor, and back."""

    def __init__(self, where: str, user: str | None) -> None:
        self._where, self._user = where, user
        self._place = Place(where, None, where)
        self._etag: str | None = None
        self._before = b""
        self._local = Path()

    async def fetch(self) -> None:
        """Raises InvalidArgument, and what a download raises; a missing file counts as an empty one."""
        from skerry.cli.commands.sandboxes import connect
        from skerry.core import FileMissing, InvalidArgument

        self._place = parse_place(self._where)
        if self._place.sandbox is None or not self._place.name:
            raise InvalidArgument(f"{self._where!r} is not a file in a sandbox", hint="skerry edit SANDBOX:PATH")
        directory = Path(tempfile.mkdtemp(prefix="skerry-edit-"))  # mode 0700
        self._local = directory / self._place.name  # the editor chooses the language by the suffix
        try:
            async with connect(self._place.sandbox) as box:
                try:
                    info = await box.files.stat(
                        self._place.path, user=self._user
                    )  # before the download: a later change is noticed
                    self._before = await box.files.read(self._place.path, user=self._user)
                    self._etag = info.etag
                except FileMissing:
                    note(f"{self._place} is new")
            self._local.touch(mode=0o600)
            self._local.write_bytes(self._before)
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Remove the local copy."""
        shutil.rmtree(self._local.parent, ignore_errors=True)

    def run_editor(self) -> int:
        """Wait for the editor; 1 if it failed, after printing why."""
        command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or next(filter(shutil.which, EDITORS), None)
        if command is None:
            return _fail("there is no editor", "COMMAND_NOT_FOUND", "set EDITOR to the one you want")
        try:
            with _unbothered():
                code = subprocess.run([*shlex.split(command), str(self._local)], check=False).returncode
        except (OSError, ValueError) as error:
            return _fail(f"the editor {command!r} cannot be started: {error}", "COMMAND_NOT_FOUND", "set EDITOR")
        if code != 0:
            how = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
            return _fail(f"the editor {command!r} {how}; {self._place} is unchanged", "COMMAND_FAILED")
        if not self._local.is_file():
            return _fail(f"the editor has removed the file; {self._place} is unchanged", "FILE_NOT_FOUND")
        return 0

    def is_changed(self) -> bool:
        if self._local.read_bytes() != self._before:
            return True
        note("nothing was changed")
        return False

    async def send(self) -> None:
        """Every failure, also Ctrl-C, keeps the local copy. Raises Conflict, and what a write raises."""
        from skerry.cli.commands.sandboxes import connect
        from skerry.cli.copy import put
        from skerry.core import Conflict

        assert self._place.sandbox is not None  # fetch has made sure
        try:
            async with connect(self._place.sandbox) as box:
                with local_errors():
                    await put(box, self._local, self._place.path, etag=self._etag, user=self._user)
        except BaseException as error:
            note(f"your text is kept in {self._local}")
            if isinstance(error, Conflict):
                message = f"{self._place} was changed since you opened it, and was not written"
                compare = f"skerry cat {shlex.quote(self._where)} | diff - {shlex.quote(str(self._local))}"
                raise Conflict(message, hint=f"compare: {compare}") from None
            raise
        self.forget()


@contextmanager
def _unbothered() -> Iterator[None]:
    """Leave Ctrl-C to the editor while it runs."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the editor would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _fail(message: str, code: str, hint: str = "") -> int:
    print_error(message, code, hint, output=Format.TEXT)
    return 1
