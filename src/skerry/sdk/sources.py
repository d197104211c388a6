"""What a new sandbox's working directory begins with: a git repository or a tar archive."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from skerry.core.errors import AlreadyExists, CommandNotFound, InvalidArgument, SkerryError, TemplateBuildFailed
from skerry.core.models import ExecResult
from skerry.sdk.building import KEPT_OUTPUT, step_error
from skerry.sdk.commands import TextCallback, check_whole
from skerry.sdk.git_auth import split_url

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

FETCH_TIMEOUT = 1800.0
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_DOWNLOAD = """
if command -v curl >/dev/null; then exec curl -fsSL --proto '=https' -o "$2" -- "$1"; fi
if command -v wget >/dev/null; then exec wget -q --https-only -O "$2" -- "$1"; fi
if command -v python3 >/dev/null; then
    exec python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)' "$1" "$2"
fi
echo "this sandbox has none of curl, wget and python3" >&2
exit 127
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GitSource:
    """A repository. `password` (a token goes there) is used for the clone and is nowhere in the sandbox afterwards."""

    url: str
    ref: str | None = None
    """A branch, a tag or a commit; None: what the repository shows first."""
    depth: int | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        split_url(self.url, self.username, self.password)
        if self.depth is not None:
            check_whole(self.depth, "depth", least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TarSource:
    """A tar archive, compressed or not: a file of this machine, or an https URL that the sandbox itself fetches."""

    location: str | os.PathLike[str]
    strip: int = 0
    """How many leading directories its names lose."""

    def __post_init__(self) -> None:
        check_whole(self.strip, "strip", least=0)
        if self.url is None and not os.path.isfile(self.location):
            raise InvalidArgument(f"{os.fspath(self.location)!r} is not a file", hint="a path, or an https URL")

    @property
    def url(self) -> str | None:
        """The URL, unless it is a path. Raises InvalidArgument for one that is not https."""
        text = os.fspath(self.location)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if scheme not in ("", "https"):
            raise InvalidArgument(f"an archive is fetched by https only, not by {scheme}")
        return text if scheme else None


Source = GitSource | TarSource
SourceOption = GitSource | TarSource | str | os.PathLike[str]
"""Text is the URL of a repository, or the path or URL of an archive if it ends like one (.tar, .tar.gz, .tgz …)."""


def check_source(source: SourceOption | None, network: str) -> Source | None:
    """Raises InvalidArgument, also for one that a sandbox without a network could not fetch."""
    if source is None:
        return None
    if isinstance(source, os.PathLike) or (isinstance(source, str) and source.lower().endswith(_ARCHIVES)):
        chosen: Source = TarSource(location=source)
    elif isinstance(source, str):
        chosen = GitSource(url=source)
    elif isinstance(source, GitSource | TarSource):
        chosen = source
    else:
        raise InvalidArgument(f"source must be a URL, a path, GitSource or TarSource, not {type(source).__name__}")
    local = chosen.url is None or chosen.url.startswith(("/", "file://"))
    if not local and network == "none":
        raise InvalidArgument("the source cannot be fetched without a network", hint="network='open'")
    return chosen


def source_digest(source: Source) -> str:
    """The same for what gives the same files, as far as that can be told here. Raises OSError."""
    what: tuple[str | int | None, ...]
    if isinstance(source, GitSource):
        what = ("git", source.url, source.ref, source.depth, source.username)
    elif source.url is not None:
        what = ("tar", source.url, source.strip)
    else:
        with open(source.location, "rb") as file:
            what = ("tar", hashlib.file_digest(file, "sha256").hexdigest(), source.strip)
    return hashlib.sha256(repr(what).encode("utf-8", "surrogateescape")).hexdigest()


async def fetch(sandbox: AsyncSandbox, source: Source, on_log: TextCallback | None) -> None:
    """Fill the working directory, as the sandbox's user.

    Raises AlreadyExists where something is there already, what `git.clone` raises, TemplateBuildFailed, DiskFull.
    """
    workdir = sandbox._info.workdir
    if isinstance(source, GitSource):
        await _clone(sandbox, source, workdir)
    else:
        await _unpack(sandbox, source, workdir, on_log)


async def _clone(sandbox: AsyncSandbox, source: GitSource, workdir: str) -> None:
    try:
        await sandbox.git.clone(
            source.url,
            workdir,
            ref=source.ref,
            depth=source.depth,
            username=source.username,
            password=source.password,
            timeout=FETCH_TIMEOUT,
        )
    except AlreadyExists as error:
        raise AlreadyExists(
            f"the template has files in {workdir} already", errno=error.errno, hint="choose another workdir="
        ) from error


async def _unpack(sandbox: AsyncSandbox, source: TarSource, workdir: str, on_log: TextCallback | None) -> None:
    place = f"/tmp/.source-{secrets.token_hex(8)}"
    try:
        if source.url is None:
            await sandbox.files.upload(source.location, place)
        else:
            command = ["/bin/sh", "-c", _DOWNLOAD, "sh", source.url, place]
            _check("download", await _run(sandbox, command, on_log))
        await sandbox.files.mkdir(workdir)
        strip = [f"--strip-components={source.strip}"] if source.strip else []
        _check("unpack", await _run(sandbox, ["tar", "-x", *strip, "-f", place, "-C", workdir], on_log))
    finally:
        await _remove(sandbox, place)


async def _run(sandbox: AsyncSandbox, command: list[str], on_log: TextCallback | None) -> ExecResult:
    try:
        return await sandbox.exec(
            command, timeout=FETCH_TIMEOUT, on_stdout=on_log, on_stderr=on_log, output_limit=KEPT_OUTPUT
        )
    except CommandNotFound as error:
        raise TemplateBuildFailed(f"source: {error.message}", step="source", hint=error.hint) from error


def _check(step: str, result: ExecResult) -> None:
    if not result.ok:
        raise step_error("source", step, result)


async def _remove(sandbox: AsyncSandbox, place: str) -> None:
    try:
        await sandbox.files.remove(place)
    except SkerryError:
        pass  # it never came so far, or the sandbox is gone and all with it
