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


class AsUser(Body):
    """Something that is done with a user's rights."""

    user: User | None = None
    """The user of the sandbox whose rights it has; null: the sandbox's own user."""


class Place(AsUser):
    """Where and as whom a program runs."""

    cwd: Path | None = None
    """The directory it begins in; null: the working directory."""
    env: Variables | None = None
    """Variables beside those of the sandbox; they take precedence."""


class Timed(Body):
    timeout: Seconds | None = None
    """Seconds after which it is killed with all its descendants; null: no limit."""


class Run(Place, Timed):
    """A command, its input and its environment."""

    command: Command
    """A text goes to the shell, a list is the arguments."""
    sudo: bool = False
    """Whether to run it as the sandbox's root."""


class Input(Body):
    """Bytes, as text or in base64."""

    data: Text | None = None
    """The bytes as text."""
    data_base64: Base64 | None = None
    """The bytes in base64, instead of `data`."""

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


class RunCommand(Run):
    """A command to wait for."""

    stdin: Text | None = None
    """Its input as text; null: an empty one."""
    stdin_base64: Base64 | None = None
    """Its input in base64, instead of `stdin`."""
    check: bool = False
    """Whether anything but exit code 0 is an error."""
    output_limit: Annotated[int, Field(ge=0, le=MAX_OUTPUT)] = OUTPUT_LIMIT
    """Bytes to keep of each stream; of a longer one the middle is dropped and counted."""


class RunCode(Place, Timed):
    """A snippet of code to wait for."""

    code: Annotated[str, Field(examples=["print(6 * 7)"])]
    """The code."""
    language: Annotated[str, Field(max_length=40)] | None = None
    """Its language: python, javascript, typescript, bash, sh, perl or ruby; null: that of the sandbox's template."""
    check: bool = False
    """Whether anything but exit code 0 is an error."""


class SpawnProcess(Run):
    """A process to start in the background."""

    stdin: bool = False
    """Whether the process gets an input that clients can write to."""


class ProcessInput(Input):
    """Input for a process, and whether it is the last."""

    close: bool = False
    """Whether this is the end of the input."""

    def content(self) -> bytes:
        return chosen(self.data, self.data_base64) or b""


class SendSignal(Body):
    """A signal for a process."""

    signal: Annotated[int, Field(ge=1, le=64, examples=[15])] = 9
    """The number of the signal."""


class CreateTerminal(Place):
    """A program to start on a terminal."""

    command: Command | None = None
    """The program: a text goes to the shell, a list is the arguments; null: a login shell."""
    cols: Annotated[int, Field(ge=1, le=10_000)] = 80
    """How many columns it has."""
    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    """How many rows it has."""


class ResizeTerminal(Body):
    """A new size of a terminal."""

    cols: Annotated[int, Field(ge=1, le=10_000)]
    """How many columns it has."""
    rows: Annotated[int, Field(ge=1, le=10_000)]
    """How many rows it has."""


class TerminalInput(Input):
    """What to type."""

    takeover: bool = False
    """Whether to take the keyboard from another client that has taken it."""


class ChangeEnvironment(Body):
    """Changes of the variables."""

    set: Variables = Field(default_factory=dict)
    """Variables to set."""
    unset: Annotated[list[str], Field(max_length=4096)] = Field(default_factory=list)
    """Names of variables to remove."""


class At(AsUser):
    """Something at a path."""

    path: Path
    """The path; a relative one starts at the working directory."""


class MakeDirectory(At):
    """A directory to make."""

    mode: Mode | None = None
    """Its permission bits, as a number or as octal digits in text; null: as the user's umask says."""
    parents: bool = True
    """Whether to make missing directories above it, and accept one that exists."""


class RenameFile(At):
    """A file or directory, and its new name."""

    target: Path
    """The new path."""
    overwrite: bool = True
    """Whether to replace what is there."""


class CopyFile(RenameFile):
    """A file or directory, and the path of its copy."""

    parents: bool = True
    """Whether to make missing directories above the copy."""


class ChangeMode(At):
    """New permission bits."""

    mode: Mode
    """The bits, as a number or as octal digits in text."""


class ChangeOwner(At):
    """A new owner or group."""

    owner: Annotated[str, Field(max_length=64)] | None = None
    """The new owner, by name or number; null: as it is."""
    group: Annotated[str, Field(max_length=64)] | None = None
    """The new group, by name or number; null: as it is."""


class MakeLink(At):
    """A symbolic link to make."""

    target: Path
    """Where it leads."""


class SearchFiles(AsUser):
    """What to look for, and where."""

    pattern: str
    """A Python regular expression, or with `regex` false a text."""
    path: Path = "."
    """The file or directory to look in."""
    regex: bool = True
    """Whether the pattern is a regular expression."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    glob: str | None = None
    """Look only in files whose names match this."""
    exclude: Annotated[list[str], Field(max_length=256)] = Field(default_factory=lambda: [".git"])
    """Names of files and directories to leave out."""
    max_matches: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Stop after this many matches."""
    max_file_size: Annotated[int, Field(ge=1, le=64 << 20)] = 8 << 20
    """Leave out files with more bytes than this."""


class ReplaceText(AsUser):
    """What to replace, by what, and where."""

    old: str
    """A text, or with `regex` a Python regular expression."""
    new: str
    """What takes its place; with `regex` it may use the groups."""
    path: Path
    """A file, or a pattern as for glob."""
    regex: bool = False
    """Whether `old` is a regular expression."""
    count: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    """Replace at most this many in each file; null: all."""


class CreateFileUrl(At):
    """A file, and what the URL allows."""

    method: Literal["GET", "PUT"] = "GET"
    """Whether the URL reads (GET) or writes (PUT) the file."""
    expires_in: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """Seconds for which the URL is valid."""


class Repository(AsUser):
    """A repository inside the sandbox."""

    path: Path = Field(examples=["/workspace/project"])
    """A directory of the repository."""


class Login(Timed):
    """Credentials for a remote; they are used once and not kept."""

    username: str | None = Field(None, repr=False)
    """The user name that the remote asks for."""
    password: str | None = Field(None, repr=False)
    """The password or token that the remote asks for."""


class CloneRepository(Login, AsUser):
    """A repository to copy into the sandbox."""

    url: Annotated[str, Field(max_length=4096)]
    """Its URL."""
    path: Path | None = None
    """Where to put it; null: a directory with its name in the working directory."""
    branch: str | None = None
    """The branch to check out; null: the remote's default."""
    ref: str | None = None
    """A tag or a commit to check out."""
    depth: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """How many commits of the history to get; null: all."""
    recurse_submodules: bool = False
    """Whether to get its submodules too."""


class StageFiles(Repository):
    """Files to stage."""

    paths: Annotated[list[Text], Field(max_length=10_000)] = Field(default_factory=list)
    """The files, relative to the repository."""
    all: bool = False
    """Whether to stage everything that has changed."""


class CommitFiles(Repository):
    """A commit of what is staged."""

    message: Text
    """Its message."""
    author_name: str | None = None
    """Its author's name; null: as git is configured."""
    author_email: str | None = None
    """Its author's address; null: as git is configured."""
    allow_empty: bool = False
    """Whether a commit without a change is accepted."""


class PushBranch(Login, Repository):
    """A branch to send."""

    remote: str = "origin"
    """The remote's name or URL."""
    branch: str | None = None
    """The branch; null: the one that is checked out."""
    set_upstream: bool = False
    """Whether the branch follows the remote's from then on."""
    force: bool = False
    """Whether to replace commits of the remote that the branch does not have."""


class PullBranch(Login, Repository):
    """A branch to fetch."""

    remote: str = "origin"
    """The remote's name or URL."""
    branch: str | None = None
    """The branch; null: the one that the present branch follows."""
    rebase: bool = False
    """Whether to put local commits on top instead of merging."""


class CreateBranch(Repository):
    """A branch to make."""

    name: str
    """Its name."""
    start: str = "HEAD"
    """The branch, tag or commit where it begins."""


class CheckOut(Repository):
    """What to check out."""

    ref: str
    """A branch, a tag or a commit."""
    create: bool = False
    """Whether to make the branch `ref`, here."""
