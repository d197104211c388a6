"""What git says about a repository, parsed out of its machine-readable output."""

from __future__ import annotations

from collections.abc import Iterator

from skerry._model import Model
from skerry.core import Corrupted
from skerry.sdk.commands.request import decode

LOG_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%at%x00%ct%x00%B"
LOG_FIELDS = 7
BRANCH_FORMAT = "%(HEAD)%00%(refname)%00%(objectname)%00%(upstream:short)%00%(symref)"


class GitFileStatus(Model):
    """A file that differs. `index` and `worktree` are git's letters: M, T, A, D, R, C, U, ? or "." for no change."""

    path: str
    """Relative to the top of the repository."""
    index: str
    """How the index differs from the last commit."""
    worktree: str
    """How the file differs from the index."""
    old_path: str | None = None
    """Where a renamed or copied file came from."""
    conflicted: bool = False
    """Whether a merge left both sides in it."""

    @property
    def untracked(self) -> bool:
        return self.index == "?"

    @property
    def staged(self) -> bool:
        return self.index not in ".?" and not self.conflicted


class GitStatus(Model):
    """The state of a working tree."""

    branch: str | None
    """None when no branch is checked out."""
    commit: str | None
    """None before the first commit."""
    upstream: str | None
    """The branch of a remote that it follows; None: it follows none."""
    ahead: int
    """Commits that the upstream does not have."""
    behind: int
    """Commits that only the upstream has."""
    files: tuple[GitFileStatus, ...]
    """The files that differ."""

    @property
    def clean(self) -> bool:
        """Whether nothing differs from the last commit and nothing is untracked."""
        return not self.files


class GitCommit(Model):
    """A commit. Times are seconds since the epoch."""

    id: str
    """Its hash."""
    parents: tuple[str, ...]
    """The hashes of the commits before it."""
    author_name: str
    """Who wrote it."""
    author_email: str
    """The author's address."""
    authored_at: int
    """When it was written."""
    committed_at: int
    """When it was committed."""
    message: str
    """The whole message."""

    @property
    def subject(self) -> str:
        return self.message.partition("\n")[0]


class GitBranch(Model):
    """A branch, or what was last seen of one of a remote."""

    name: str
    """Of a remote's branch with the remote: `origin/main`."""
    commit: str
    """The hash of its last commit."""
    current: bool
    """Whether it is checked out."""
    remote: bool
    """Whether it is a remote's."""
    upstream: str | None
    """The branch of a remote that it follows; None: it follows none."""


def parse_status(output: bytes) -> GitStatus:
    """The output of `git status --porcelain=v2 --branch -z`. Raises Corrupted for anything else."""
    heads: dict[str, str] = {}
    files: list[GitFileStatus] = []
    records = iter(decode(output).split("\0")[:-1])
    try:
        for record in records:
            if record.startswith("# "):
                _, name, value = record.split(" ", 2)
                heads[name] = value
            else:
                files.append(_file_status(record, records))
        ahead, behind = (abs(int(part)) for part in heads.get("branch.ab", "+0 -0").split(" "))
    except (ValueError, StopIteration) as error:
        raise Corrupted(f"git status did not write the expected format: {error}") from None
    head, commit = heads.get("branch.head", "(detached)"), heads.get("branch.oid", "(initial)")
    return GitStatus(
        branch=None if head == "(detached)" else head,
        commit=None if commit == "(initial)" else commit,
        upstream=heads.get("branch.upstream"),
        ahead=ahead,
        behind=behind,
        files=tuple(files),
    )


def _file_status(record: str, records: Iterator[str]) -> GitFileStatus:
    kind = record[:1]
    if kind == "?":
        return GitFileStatus(path=record[2:], index="?", worktree="?")
    before_path = {"1": 8, "2": 9, "u": 10}.get(kind)
    if before_path is None:
        raise ValueError(f"a record of kind {kind!r}")
    parts = record.split(" ", before_path)
    codes, path = parts[1], parts[before_path]
    if len(codes) != 2:
        raise ValueError(f"the letters {codes!r}")
    old_path = next(records) if kind == "2" else None
    return GitFileStatus(path=path, index=codes[0], worktree=codes[1], old_path=old_path, conflicted=kind == "u")


def parse_log(output: bytes) -> list[GitCommit]:
    """The output of `git log -z --format=LOG_FORMAT`. Raises Corrupted for anything else."""
    fields = output.split(b"\0")[:-1] if output else []
    if len(fields) % LOG_FIELDS:
        raise Corrupted("git log did not write the expected format")
    return [_commit(*fields[start : start + LOG_FIELDS]) for start in range(0, len(fields), LOG_FIELDS)]


def _commit(
    id: bytes, parents: bytes, name: bytes, email: bytes, authored: bytes, committed: bytes, message: bytes
) -> GitCommit:
    try:
        times = int(authored), int(committed)
    except ValueError:
        raise Corrupted("git log wrote an invalid time") from None
    return GitCommit(
        id=decode(id),
        parents=tuple(decode(parents).split()),
        author_name=decode(name),
        author_email=decode(email),
        authored_at=times[0],
        committed_at=times[1],
        message=decode(message).rstrip("\n"),
    )


def parse_branches(output: bytes) -> list[GitBranch]:
    """The output of `git for-each-ref --format=BRANCH_FORMAT`. Raises Corrupted for anything else."""
    branches = []
    for line in decode(output).splitlines():
        fields = line.split("\0")
        if len(fields) != 5:
            raise Corrupted("git for-each-ref did not write the expected format")
        head, name, commit, upstream, symbolic = fields
        if symbolic:  # origin/HEAD is another name for a branch, not one itself
            continue
        remote = name.startswith("refs/remotes/")
        short = name.removeprefix("refs/remotes/").removeprefix("refs/heads/")
        branches.append(
            GitBranch(name=short, commit=commit, current=head == "*", remote=remote, upstream=upstream or None)
        )
    return branches
