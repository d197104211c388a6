"""SANDBOX:PATH and local paths, as `cp` and `edit` take them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place to copy from or to: in a sandbox, on this machine, or `-` for stdin and stdout."""

    text: str
    sandbox: str | None
    path: str

    @property
    def is_pipe(self) -> bool:
        return self.sandbox is None and self.path == "-"

    @property
    def name(self) -> str:
        """Its name in its directory; empty if the path does not say."""
        last = self.path.rstrip("/").rpartition("/")[2]
        return "" if last in (".", "..") else last

    @property
    def wants_content(self) -> bool:
        """Whether the path means the contents of a directory: it is `.` or ends with `/.`, as for `cp`."""
        return self.path == "." or self.path.rstrip("/").endswith("/.")

    @property
    def wants_directory(self) -> bool:
        """Whether the path says that it is a directory to put things into."""
        return self.path.endswith("/")

    def local_kind(self) -> str | None:
        """Of a local path: `dir`, or `file` for anything else; None: it does not exist."""
        if self.is_pipe:
            return "file"
        if os.path.isdir(self.path):
            return "dir"
        return "file" if os.path.exists(self.path) else None

    def local_name(self) -> str:
        """Of a local path: its name, even if the path does not say it; empty for the root."""
        return self.name or os.path.basename(os.path.realpath(self.path))

    def within(self, name: str) -> Place:
        """The place with this name in this directory."""
        path = f"{self.path.rstrip('/')}/{name}"
        return Place(path if self.sandbox is None else f"{self.sandbox}:{path}", self.sandbox, path)

    def __str__(self) -> str:
        return self.text


def parse_place(text: str) -> Place:
    """A colon before any slash ends a sandbox's name; `./a:b` is a local file. Raises InvalidArgument."""
    from skerry.core import InvalidArgument

    sandbox, colon, path = text.partition(":")
    if not colon or "/" in sandbox:
        if not text:
            raise InvalidArgument("the path is empty", hint="give a file, or SANDBOX:PATH")
        return Place(text, None, text)
    if not sandbox:
        raise InvalidArgument(f"{text!r} names no sandbox", hint=f"write SANDBOX{text}, or ./{text} for a local file")
    if not path:
        raise InvalidArgument(f"{text!r} has no path", hint=f"{text}. is its working directory")
    return Place(text, sandbox, path)


@contextmanager
def local_errors() -> Iterator[None]:
    """Turns an OSError of this machine into a SkerryError, so that it is printed like those of a sandbox."""
    from skerry.core import errors

    try:
        yield
    except (errors.SkerryError, BrokenPipeError):
        raise
    except OSError as error:
        kinds: dict[int | None, type[errors.FileError]] = {
            errno.ENOENT: errors.FileMissing,
            errno.EACCES: errors.PermissionDenied,
            errno.EPERM: errors.PermissionDenied,
            errno.EISDIR: errors.IsADirectory,
            errno.ENOTDIR: errors.NotADirectory,
            errno.EEXIST: errors.AlreadyExists,
            errno.ENOTEMPTY: errors.NotEmpty,
            errno.EROFS: errors.ReadOnly,
            errno.ENOSPC: errors.DiskFull,
            errno.EDQUOT: errors.DiskFull,
        }
        kind = kinds.get(error.errno, errors.FileError)
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        raise kind(f"{where}{error.strerror or error} (on this machine)", errno=error.errno, hint="") from error
