"""Git in a sandbox: its own git does the work, without questions and without keeping credentials."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import anyio

from skerry.core import CommandNotFound, ExecResult, FileMissing, InvalidArgument, SkerryError
from skerry.sdk.commands.execute import execute
from skerry.sdk.commands.request import SandboxPath, build, check_whole, encode_path
from skerry.sdk.connection.link import Link
from skerry.sdk.files.files import AsyncFiles
from skerry.sdk.git.auth import Credentials, credentials, split_url
from skerry.sdk.git.errors import git_error
from skerry.sdk.git.output import (
    BRANCH_FORMAT,
    LOG_FORMAT,
    GitBranch,
    GitCommit,
    GitStatus,
    parse_branches,
    parse_log,
    parse_status,
)

PLAIN = ("-c", "advice.detachedHead=false", "-c", "core.quotePath=false")
MAX_OUTPUT = 64 << 20
CLEAN_UP = 30.0
"""How long a clone that failed may take to remove what it has made."""
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_EDITOR": ":",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Nobody is there to answer a question, and messages are told apart by their words."""


class AsyncGit:
    """Repositories of a sandbox. `path` is the repository's directory; `user` acts with another user's rights.

    `username` and `password` (a token goes there) are for http and https. They are in the environment of that one git
    process, sent to the server of the repository's URL only, and gone when it has ended; while it runs, programs of
    the same user in the sandbox, hooks among them, can read them.

    Every method raises:
        GitError: git failed; `result` has what it wrote.
        Unauthenticated: the server wants other credentials.
        RepositoryNotFound: there is no repository.
        FileMissing, NotADirectory: there is no such directory.
        PermissionDenied: the repository belongs to another user than `user`.
        CommandNotFound: the sandbox has no git.
        ExecTimeout: it took longer than `timeout` seconds, where there is one.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def clone(
        self,
        url: str,
        path: SandboxPath | None = None,
        *,
        branch: str | None = None,
        ref: str | None = None,
        depth: int | None = None,
        username: str | None = None,
        password: str | None = None,
        recurse_submodules: bool = False,
        timeout: float | None = None,
        user: str | None = None,
    ) -> str:
        """Copy a repository to `path`, by default a directory named after it. Returns the absolute path.

        `branch` (or a tag) is what is checked out; `ref` may be any commit, and with `depth` only that many commits
        come with it. A user and password in the URL are used and not stored. `timeout` is for each step. A clone that
        fails leaves nothing.

        Raises AlreadyExists where `path` exists and is not empty, and InvalidArgument.
        """
        clean, login = split_url(url, username, password)
        if branch is not None and ref is not None:
            raise InvalidArgument("give a branch or a ref, not both")
        target = _target(clean) if path is None else str(path)
        encode_path(target)
        options = ["--depth", str(check_whole(depth, "depth", least=1))] if depth is not None else []
        arguments = ["clone", *options, *(["--branch", _name(branch, "branch")] if branch is not None else [])]
        arguments += ["--no-checkout"] if ref is not None else ["--recurse-submodules"] if recurse_submodules else []
        wanted = None if ref is None else _name(ref, "ref")
        files = AsyncFiles(self._link)
        existed = await files.exists(target, user=user)
        try:
            await self._run(
                None, [*arguments, "--", clean, _path_argument(target)], login=login, timeout=timeout, user=user
            )
            if wanted is not None:
                await self._check_out_ref(target, wanted, options, recurse_submodules, login, timeout, user)
            top = await self._run(target, ["rev-parse", "--show-toplevel"], user=user)
        except BaseException:
            if not existed:
                with contextlib.suppress(SkerryError), anyio.move_on_after(CLEAN_UP, shield=True):
                    await files.remove(target, recursive=True, user=user)
            raise
        return top.stdout_bytes.removesuffix(b"\n").decode("utf-8", "surrogateescape")

    async def _check_out_ref(
        self,
        path: str,
        ref: str,
        depth: list[str],
        submodules: bool,
        login: Credentials | None,
        timeout: float | None,
        user: str | None,
    ) -> None:
        if depth:
            await self._run(path, ["fetch", *depth, "--", "origin", ref], login=login, timeout=timeout, user=user)
            await self._run(path, ["checkout", "--detach", "FETCH_HEAD", "--"], timeout=timeout, user=user)
        else:
            await self._run(path, ["checkout", ref, "--"], timeout=timeout, user=user)
        if submodules:
            update = ["submodule", "update", "--init", "--recursive"]
            await self._run(path, update, login=login, timeout=timeout, user=user)

    async def status(self, path: SandboxPath, *, user: str | None = None) -> GitStatus:
        """The branch, how far it is from its upstream, and every file that differs; untracked ones one by one."""
        arguments = ["--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z"]
        return parse_status((await self._run(path, arguments, user=user)).stdout_bytes)

    async def add(
        self, path: SandboxPath, paths: str | Sequence[str] = (), *, all: bool = False, user: str | None = None
    ) -> None:
        """Stage files or directories, named exactly and relative to `path`; with `all` everything that differs."""
        names = [paths] if isinstance(paths, str) else list(paths)
        if bool(names) == all:
            raise InvalidArgument("give paths to add, or all=True")
        chosen = ["--all"] if all else ["--", *names]
        await self._run(path, ["--literal-pathspecs", "add", *chosen], user=user)

    async def commit(
        self,
        path: SandboxPath,
        message: str,
        *,
        author_name: str | None = None,
        author_email: str | None = None,
        allow_empty: bool = False,
        user: str | None = None,
    ) -> GitCommit:
        """Commit what is staged. Without an author the sandbox's git must know one (`user.name`, `user.email`)."""
        if not message.strip() or "\0" in message:
            raise InvalidArgument("a commit needs a message")
        env: dict[str, str] = {}
        for word, value in (("NAME", author_name), ("EMAIL", author_email)):
            if value is not None:
                env |= {f"GIT_AUTHOR_{word}": value, f"GIT_COMMITTER_{word}": value}
        arguments = ["commit", "--file=-", *(["--allow-empty"] if allow_empty else [])]
        await self._run(path, arguments, env=env, stdin=message.encode("utf-8", "surrogateescape"), user=user)
        return (await self.log(path, limit=1, user=user))[0]

    async def push(
        self,
        path: SandboxPath,
        *,
        remote: str = "origin",
        branch: str | None = None,
        set_upstream: bool = False,
        force: bool = False,
        username: str | None = None,
        password: str | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> None:
        """Send a branch, by default the one checked out, to the branch of that name.

        `force` replaces commits of the remote, unless the remote has commits that were not seen here before.
        """
        what = "HEAD" if branch is None else _name(branch, "branch")
        login = await self._login(path, remote, username, password, user, push=True)
        options = [*(["--set-upstream"] if set_upstream else []), *(["--force-with-lease"] if force else [])]
        await self._run(path, ["push", *options, "--", remote, what], login=login, timeout=timeout, user=user)

    async def pull(
        self,
        path: SandboxPath,
        *,
        remote: str = "origin",
        branch: str | None = None,
        rebase: bool = False,
        username: str | None = None,
        password: str | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> GitCommit:
        """Fetch a branch, by default the upstream's, and merge it or rebase on it.

        Returns the commit checked out then.
        """
        what = [] if branch is None else [_name(branch, "branch")]
        login = await self._login(path, remote, username, password, user)
        mode = "--rebase" if rebase else "--no-rebase"
        arguments = ["pull", "--no-edit", mode, "--", remote, *what]
        await self._run(path, arguments, login=login, timeout=timeout, user=user)
        return (await self.log(path, limit=1, user=user))[0]

    async def branches(self, path: SandboxPath, *, user: str | None = None) -> list[GitBranch]:
        """The local branches, then those of remotes, each by name."""
        arguments = ["for-each-ref", f"--format={BRANCH_FORMAT}", "refs/heads", "refs/remotes"]
        return parse_branches((await self._run(path, arguments, user=user)).stdout_bytes)

    async def create_branch(
        self, path: SandboxPath, name: str, *, start: str = "HEAD", user: str | None = None
    ) -> None:
        """Make a branch at a commit, without checking it out."""
        await self._run(path, ["branch", "--", _name(name, "branch"), _name(start, "ref")], user=user)

    async def delete_branch(
        self, path: SandboxPath, name: str, *, force: bool = False, user: str | None = None
    ) -> None:
        """Delete a local branch; one that is not merged only with `force`."""
        await self._run(path, ["branch", "-D" if force else "-d", "--", _name(name, "branch")], user=user)

    async def checkout(self, path: SandboxPath, ref: str, *, create: bool = False, user: str | None = None) -> None:
        """Check out a branch, a tag or a commit; with `create` a new branch of that name."""
        name = _name(ref, "ref")
        await self._run(path, ["checkout", "-b", name] if create else ["checkout", name, "--"], user=user)

    async def log(
        self, path: SandboxPath, *, limit: int = 50, ref: str = "HEAD", user: str | None = None
    ) -> list[GitCommit]:
        """The last commits that lead to `ref`, newest first."""
        count = f"--max-count={check_whole(limit, 'limit', least=1)}"
        options = ["-z", "--encoding=UTF-8", "--no-show-signature", count, f"--format={LOG_FORMAT}"]
        result = await self._run(path, ["log", *options, _name(ref, "ref"), "--"], user=user)
        return parse_log(result.stdout_bytes)

    async def diff(
        self,
        path: SandboxPath,
        *,
        staged: bool = False,
        ref: str | None = None,
        paths: str | Sequence[str] = (),
        user: str | None = None,
    ) -> str:
        """A patch of what is changed and not staged, or of what is `staged`, or of all that differs from `ref`."""
        chosen = ["--cached"] if staged else []
        chosen += [] if ref is None else [_name(ref, "ref")]
        names = [paths] if isinstance(paths, str) else list(paths)
        plain = ["--no-color", "--no-ext-diff", "--no-textconv"]
        result = await self._run(path, ["--literal-pathspecs", "diff", *plain, *chosen, "--", *names], user=user)
        return result.stdout

    async def _login(
        self,
        path: SandboxPath,
        remote: str,
        username: str | None,
        password: str | None,
        user: str | None,
        *,
        push: bool = False,
    ) -> Credentials | None:
        _name(remote, "remote")
        if username is None and password is None:
            return None
        arguments = ["remote", "get-url", *(["--push"] if push else []), "--", remote]
        url = (await self._run(path, arguments, user=user)).stdout.partition("\n")[0]
        return credentials(url, username, password)

    async def _run(
        self,
        path: SandboxPath | None,
        arguments: list[str],
        *,
        login: Credentials | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> ExecResult:
        secret = login.env if login is not None else {}
        options = [*PLAIN, *(login.options if login is not None else [])]
        request = build(
            ["git", *options, *arguments],
            cwd=path,
            env={**ENVIRONMENT, **(env or {}), **secret},
            timeout=timeout,
            user=user,
            stdin=stdin,
            output_limit=MAX_OUTPUT,
        )
        try:
            result = await execute(self._link, request, None, None)
        except CommandNotFound as error:
            raise CommandNotFound("there is no git in this sandbox", hint="use a template that has git") from error
        except FileMissing as error:
            raise FileMissing(f"there is no {path or 'working directory'}", errno=error.errno) from error
        if not result.ok:
            raise git_error(result, arguments)
        if result.truncated:
            raise InvalidArgument("git wrote more than 64 MiB", hint="ask for less: a limit, a path, a smaller range")
        return result


def _name(value: object, what: str) -> str:
    """A branch, ref or remote that git cannot take for an option. Raises InvalidArgument."""
    if not isinstance(value, str) or not value or value.startswith("-") or "\0" in value:
        raise InvalidArgument(f"{value!r} is not a {what}")
    return value


def _path_argument(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def _target(url: str) -> str:
    """The directory that git would choose."""
    name = url.rstrip("/").removesuffix("/.git").rstrip("/").replace(":", "/").rpartition("/")[2].removesuffix(".git")
    if name in ("", ".", ".."):
        raise InvalidArgument("the URL has no name for a directory", hint="give a path")
    return name
