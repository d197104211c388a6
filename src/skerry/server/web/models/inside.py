"""Requests about what happens inside a sandbox."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field

from skerry.core import InvalidArgument
from skerry.sdk import OUTPUT_LIMIT
from skerry.server.web.models.types import Base64, Body, Command, Mode, Path, Seconds, Text, User, Variables

MAX_OUTPUT = 16 << 20
"""As text in JSON it is up to six times as large, all of it in memory at once; a stream of lines has no limit."""


class Run(Body):
    """A command, its input and its environment."""

    command: Command
    cwd: Path | None = None
    env: Variables | None = None
    timeout: Seconds | None = None
    user: User | None = None


class Input(Body):
    """Bytes, as text or in base64."""

    data: Text | None = None
    data_base64: Base64 | None = None

    def content(self) -> bytes:
        """Raises InvalidArgument unless exactly one of the two is given."""
        found = chosen(self.data, self.data_base64)
        if found is None:
            raise InvalidArgument("give data or data_base64")
        return found


def chosen(text: str | None, encoded: str | None) -> bytes | None:
    """Raises InvalidArgument when both are given."""
    if text is not None and encoded is not None:
        raise InvalidArgument("give text or base64, not both")
    if encoded is not None:
        return base64.b64decode(encoded)
    return None if text is None else text.encode("utf-8", "surrogateescape")


class Exec(Run):
    sudo: bool = False
    stdin: Text | None = None
    stdin_base64: Base64 | None = None
    check: bool = False
    """Whether anything but exit code 0 is an error."""
    output_limit: Annotated[int, Field(ge=0, le=MAX_OUTPUT)] = OUTPUT_LIMIT
    """Bytes to keep of each stream; of a longer one the middle is dropped and counted."""


class Code(Body):
    code: Annotated[str, Field(examples=["print(6 * 7)"])]
    language: Annotated[str, Field(max_length=40)] = "python"
    cwd: Path | None = None
    env: Variables | None = None
    timeout: Seconds | None = None
    user: User | None = None
    check: bool = False
    """Whether anything but exit code 0 is an error."""


class Spawn(Run):
    sudo: bool = False
    stdin: bool = False
    """Whether the process gets an input that clients can write to."""


class Stdin(Input):
    close: bool = False
    """Whether this is the end of the input."""

    def content(self) -> bytes:
        return chosen(self.data, self.data_base64) or b""


class SignalBody(Body):
    signal: Annotated[int, Field(ge=1, le=64, examples=[15])] = 9


class TerminalCreate(Body):
    command: Command | None = None
    """Without a command: a login shell."""
    cols: Annotated[int, Field(ge=1, le=10_000)] = 80
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    cwd: Path | None = None
    env: Variables | None = None
    user: User | None = None


class Resize(Body):
    cols: Annotated[int, Field(ge=1, le=10_000)]
    rows: Annotated[int, Field(ge=1, le=10_000)]


class Typed(Input):
    takeover: bool = False
    """Whether to take the keyboard from another client that has taken it."""


class EnvChange(Body):
    set: Variables = Field(default_factory=dict)
    unset: Annotated[list[str], Field(max_length=4096)] = Field(default_factory=list)


class At(Body):
    path: Path
    user: User | None = None


class MkDir(At):
    mode: Mode | None = None
    parents: bool = True


class Rename(At):
    target: Path
    overwrite: bool = True


class CopyFile(Rename):
    parents: bool = True


class Chmod(At):
    mode: Mode


class Chown(At):
    owner: Annotated[str, Field(max_length=64)] | None = None
    group: Annotated[str, Field(max_length=64)] | None = None


class Symlink(At):
    target: Path


class Search(Body):
    pattern: str
    path: Path = "."
    regex: bool = True
    ignore_case: bool = False
    glob: str | None = None
    exclude: Annotated[list[str], Field(max_length=256)] = Field(default_factory=lambda: [".git"])
    max_matches: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_file_size: Annotated[int, Field(ge=1, le=64 << 20)] = 8 << 20
    user: User | None = None


class Replace(Body):
    old: str
    new: str
    path: Path
    """A file, or a pattern as for glob."""
    regex: bool = False
    count: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    user: User | None = None


class FileUrl(Body):
    path: Path
    method: Literal["GET", "PUT"] = "GET"
    expires_in: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """Seconds for which the URL is valid."""
    user: User | None = None


class Repository(Body):
    path: Path = Field(examples=["/workspace/project"])
    user: User | None = None


class Login(Repository):
    username: str | None = Field(None, repr=False)
    password: str | None = Field(None, repr=False)
    timeout: Seconds | None = None


class CloneBody(Body):
    url: Annotated[str, Field(max_length=4096)]
    path: Path | None = None
    branch: str | None = None
    ref: str | None = None
    depth: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    username: str | None = Field(None, repr=False)
    password: str | None = Field(None, repr=False)
    recurse_submodules: bool = False
    timeout: Seconds | None = None
    user: User | None = None


class Add(Repository):
    paths: Annotated[list[Text], Field(max_length=10_000)] = Field(default_factory=list)
    all: bool = False


class Commit(Repository):
    message: Text
    author_name: str | None = None
    author_email: str | None = None
    allow_empty: bool = False


class Push(Login):
    remote: str = "origin"
    branch: str | None = None
    set_upstream: bool = False
    force: bool = False


class Pull(Login):
    remote: str = "origin"
    branch: str | None = None
    rebase: bool = False


class Branch(Repository):
    name: str
    start: str = "HEAD"


class Checkout(Repository):
    ref: str
    create: bool = False
