"""What a new sandbox's working directory begins with: a git repository or a tar archive."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from anyio.to_thread import run_sync

from skerry._model import Model
from skerry.core import AlreadyExists, ExecResult, InvalidArgument, SkerryError
from skerry.sdk.commands.request import TextCallback, check_whole
from skerry.sdk.git.auth import split_url
from skerry.sdk.templates.step_errors import KEPT_OUTPUT, named_step, step_error

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

FETCH_TIMEOUT = 1800.0
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_DOWNLOAD = r"""set -e
fetch() {
    if command -v curl >/dev/null; then
        printf 'url = "%s"\n' "$SOURCE_URL" | curl -fsSL --proto '=https' -o "$1" -K -
    elif command -v python3 >/dev/null; then
        python3 -c "$FETCH" "$1"
    elif command -v wget >/dev/null; then
        printf '%s\n' "$SOURCE_URL" | wget -q --max-redirect=0 -O "$1" -i -  # it would follow one to http
    else
        echo "this sandbox has none of curl, wget and python3" >&2
        return 127
    fi
}
fetch "$1"
test -s "$1" || { echo "the server sent nothing" >&2; exit 1; }
"""
"""The URL, which may have a password in it, is in no command line: everybody in the sandbox could read that."""
_FETCH = """import base64, os, shutil, sys, urllib.error, urllib.parse, urllib.request

class Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request, file, code, message, headers, url):
        if not url.startswith("https://"):
            raise urllib.error.URLError("redirected to a URL that is not https")
        return super().redirect_request(request, file, code, message, headers, url)

parts = urllib.parse.urlsplit(os.environ["SOURCE_URL"])
who, _, server = parts.netloc.rpartition("@")
request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=server)))
if who:
    login = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
    request.add_unredirected_header("Authorization", "Basic " + login)
try:
    with urllib.request.build_opener(Redirects).open(request) as answer, open(sys.argv[1], "wb") as file:
        shutil.copyfileobj(answer, file)
except OSError as error:
    sys.exit(str(error))
"""


class GitSource(Model):
    """A repository. `password` (a token goes there) is used for the clone and is nowhere in the sandbox afterwards."""

    url: str
    ref: str | None = None
    """A branch, a tag or a commit; None: what the repository shows first."""
    depth: int | None = None
    username: str | None = field(default=None, repr=False)  # some services take a token for one
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        clean, login = split_url(self.url, self.username, self.password)
        if clean != self.url and login is not None:  # those of the URL are shown as little as those given beside it
            object.__setattr__(self, "url", clean)
            object.__setattr__(self, "username", login.env["GIT_AUTH_USER"])
            object.__setattr__(self, "password", login.env["GIT_AUTH_SECRET"])
        if self.depth is not None:
            check_whole(self.depth, "depth", least=1)


class TarSource(Model):
    """A tar archive, compressed or not: a file of this machine, or an https URL that the sandbox itself fetches."""

    location: str | os.PathLike[str] = field(repr=False)  # a URL may have a password in it
    strip: int = 0
    """How many leading directories its names lose."""

    def __post_init__(self) -> None:
        check_whole(self.strip, "strip", least=0)
        if self.url is None:
            self.check_file()
        elif set(self.url) & set("\"\\' ") or any(ord(letter) < 32 for letter in self.url):
            raise InvalidArgument("the URL of an archive has characters that a URL cannot have")

    def check_file(self) -> None:
        """Raises InvalidArgument for one that cannot be read or has nothing in it."""
        name = os.fspath(self.location)
        if not os.path.isfile(name):
            raise InvalidArgument(f"{name!r} is not a file", hint="give a path, or an https URL")
        try:
            with open(name, "rb") as file:
                empty = not file.read(1)  # files of /proc say of themselves that they are
        except OSError as error:
            raise InvalidArgument(f"{name!r} cannot be read: {error.strerror}") from error
        if empty:
            raise InvalidArgument(f"{name!r} is empty", hint="give a tar archive")

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


def check_source(source: SourceOption, network: str) -> Source:
    """Raises InvalidArgument, also for one that a sandbox without a network could not fetch."""
    if isinstance(source, os.PathLike) or (isinstance(source, str) and source.lower().endswith(_ARCHIVES)):
        chosen: Source = TarSource(location=source)
    elif isinstance(source, str):
        chosen = GitSource(url=source)
    elif isinstance(source, GitSource | TarSource):
        chosen = source
        if isinstance(source, TarSource) and source.url is None:
            source.check_file()  # it may have gone since it was named
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
            # As a stream to its end: the name may be a link, and what /proc has says nothing of its size.
            with await run_sync(lambda: open(source.location, "rb")) as file:
                await sandbox.files.write(place, file, mode=0o600)
        else:
            command = ["/bin/sh", "-c", _DOWNLOAD, "sh", place]
            env = {"SOURCE_URL": source.url, "FETCH": _FETCH}
            _check("download", await _run(sandbox, "download", command, on_log, env=env))
        await sandbox.files.mkdir(workdir)
        strip = [f"--strip-components={source.strip}"] if source.strip else []
        command = ["tar", "-x", *strip, "-f", place, "-C", workdir]
        _check("unpack", await _run(sandbox, "unpack", command, on_log))
    finally:
        await _remove(sandbox, place)


async def _run(
    sandbox: AsyncSandbox,
    step: str,
    command: list[str],
    on_log: TextCallback | None,
    *,
    env: dict[str, str] | None = None,
) -> ExecResult:
    with named_step("source", step):
        return await sandbox.exec(
            command, env=env, timeout=FETCH_TIMEOUT, on_stdout=on_log, on_stderr=on_log, output_limit=KEPT_OUTPUT
        )


def _check(step: str, result: ExecResult) -> None:
    if not result.ok:
        raise step_error("source", step, result)


async def _remove(sandbox: AsyncSandbox, place: str) -> None:
    try:
        await sandbox.files.remove(place)
    except SkerryError:
        pass  # it never came so far, or the sandbox is gone and all with it
