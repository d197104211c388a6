"""Work on code: repositories, searching and replacing."""

from __future__ import annotations

import pytest

from skerry.core import FileMissing, GitError, InvalidArgument, RepositoryNotFound, SkerryError
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance

AUTHOR, EMAIL = "A Case", "case@example.invalid"


async def origin(sandbox: AsyncSandbox, directory: str) -> str:
    """A bare repository with one commit on `main`; its path."""
    script = (
        "git init -q -b main seed && cd seed && echo one > file && git add file && "
        "git -c user.name=seed -c user.email=s@example.invalid commit -qm first && "
        "cd .. && git clone -q --bare seed origin.git"
    )
    await sandbox.exec(script, cwd=directory, check=True)
    return f"{directory}/origin.git"


class GitConformance(Conformance):
    """Repositories of a sandbox."""

    title = "git"

    async def test_a_clone_has_the_branch_and_its_history(self, sandbox: AsyncSandbox, directory: str) -> None:
        """What was cloned can be looked at without parsing anything."""
        work = await sandbox.git.clone(await origin(sandbox, directory), f"{directory}/work")
        assert work == f"{directory}/work"
        status = await sandbox.git.status(work)
        assert (status.branch, status.upstream, status.clean) == ("main", "origin/main", True)
        assert [commit.subject for commit in await sandbox.git.log(work)] == ["first"]

    async def test_a_change_is_staged_committed_and_pushed(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The whole way of a change, with its author."""
        source = await origin(sandbox, directory)
        work = await sandbox.git.clone(source, f"{directory}/work")
        await sandbox.files.write(f"{work}/new file", b"x")
        await sandbox.git.add(work, "new file")
        commit = await sandbox.git.commit(work, "second\n\nwith a body", author_name=AUTHOR, author_email=EMAIL)
        assert (commit.subject, commit.author_name) == ("second", "A Case")
        assert (await sandbox.git.status(work)).ahead == 1
        await sandbox.git.push(work)
        log = await sandbox.exec(["git", "log", "-1", "--format=%H", "main"], cwd=source)
        assert log.stdout.strip() == commit.id

    async def test_status_tells_staged_changed_and_untracked_apart(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Names with blanks and umlauts come as they are."""
        work = await sandbox.git.clone(await origin(sandbox, directory), f"{directory}/work")
        await sandbox.exec("echo two >> file; echo > 'stagéd file'; git add 'stagéd file'; echo > neu", cwd=work)
        files = {entry.path: entry for entry in (await sandbox.git.status(work)).files}
        assert set(files) == {"file", "stagéd file", "neu"}
        assert (files["stagéd file"].staged, files["neu"].untracked, files["file"].worktree) == (True, True, "M")

    async def test_branches_are_made_and_checked_out(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The current one is marked."""
        work = await sandbox.git.clone(await origin(sandbox, directory), f"{directory}/work")
        await sandbox.git.checkout(work, "topic", create=True)
        local = {branch.name: branch.current for branch in await sandbox.git.branches(work) if not branch.remote}
        assert local == {"main": False, "topic": True}

    async def test_pull_brings_what_others_pushed(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Two clones of one repository agree afterwards."""
        source = await origin(sandbox, directory)
        one = await sandbox.git.clone(source, f"{directory}/one")
        two = await sandbox.git.clone(source, f"{directory}/two")
        await sandbox.files.write(f"{one}/file", b"changed")
        await sandbox.git.add(one, all=True)
        commit = await sandbox.git.commit(one, "changed", author_name=AUTHOR, author_email=EMAIL)
        await sandbox.git.push(one)
        assert (await sandbox.git.pull(two)).id == commit.id
        assert await sandbox.files.read(f"{two}/file") == b"changed"

    async def test_a_diff_shows_the_change(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A diff is a patch of what is staged, or of what is not."""
        work = await sandbox.git.clone(await origin(sandbox, directory), f"{directory}/work")
        await sandbox.files.write(f"{work}/file", b"two\n")
        patch = await sandbox.git.diff(work)
        assert "-one" in patch
        assert "+two" in patch
        assert await sandbox.git.diff(work, staged=True) == ""

    async def test_what_is_no_repository_is_told(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Specific errors for no repository, no directory and a clone of nothing, which leaves nothing."""
        with pytest.raises(RepositoryNotFound):
            await sandbox.git.status("/")
        with pytest.raises(FileMissing):
            await sandbox.git.status(f"{directory}/nothing")
        with pytest.raises(GitError):
            await sandbox.git.clone(f"{directory}/nothing.git", f"{directory}/made")
        assert not await sandbox.files.exists(f"{directory}/made")

    async def test_credentials_are_not_kept(self, sandbox: AsyncSandbox, directory: str) -> None:
        """mitos-run/mitos#658: a token given for one call must not stay in the sandbox."""
        work = await sandbox.git.clone(await origin(sandbox, directory), f"{directory}/work")
        await sandbox.exec(["git", "remote", "set-url", "origin", "http://127.0.0.1:9/x.git"], cwd=work, check=True)
        with pytest.raises(SkerryError):
            await sandbox.git.push(work, username="somebody", password="t0ken-of-the-case")
        found = await sandbox.exec("grep -rls t0ken-of-the-case . ~/.git-credentials ~/.gitconfig; env", cwd=work)
        assert found.stdout.startswith(("/", ".")) is False
        assert "t0ken-of-the-case" not in found.stdout


class SearchConformance(Conformance):
    """Finding and replacing text in files."""

    title = "search"

    async def test_a_glob_finds_files_by_name(self, sandbox: AsyncSandbox, directory: str) -> None:
        """`*` stays in a directory, `**` goes through them."""
        for name in ("a.py", "b.txt", "sub/c.py", "sub/deep/d.py"):
            await sandbox.files.write(f"{directory}/{name}", b"")
        shallow = await sandbox.files.glob("*.py", path=directory)
        assert [entry.name for entry in shallow] == ["a.py"]
        everywhere = await sandbox.files.glob("**/*.py", path=directory)
        assert {entry.name for entry in everywhere} == {"a.py", "c.py", "d.py"}

    async def test_a_search_says_where(self, sandbox: AsyncSandbox, directory: str) -> None:
        """File, line number and the line itself."""
        await sandbox.files.write(f"{directory}/x.py", "one\ndef two():\n    three\n")
        result = await sandbox.files.search(r"def \w+", directory)
        (match,) = result.matches
        assert (match.line, match.text) == (2, "def two():")
        assert match.path.endswith("x.py")
        assert not result.truncated

    async def test_plain_text_is_not_a_pattern(self, sandbox: AsyncSandbox, directory: str) -> None:
        """With `regex=False` dots and brackets match themselves; case matters unless the caller says otherwise."""
        await sandbox.files.write(f"{directory}/x", "a.b(c)\naxb(c)\nA.B(C)\n")
        plain = await sandbox.files.search("a.b(c)", directory, regex=False)
        assert [match.line for match in plain.matches] == [1]
        either = await sandbox.files.search("a.b(c)", directory, regex=False, ignore_case=True)
        assert [match.line for match in either.matches] == [1, 3]

    async def test_more_matches_than_asked_for_are_marked(self, sandbox: AsyncSandbox, directory: str) -> None:
        """axelmierczuk/fleet-mcp#22: a list that was cut must say so."""
        await sandbox.files.write(f"{directory}/x", "hit\n" * 100)
        result = await sandbox.files.search("hit", directory, max_matches=10)
        assert (len(result.matches), result.truncated) == (10, True)

    async def test_binary_and_excluded_files_are_left_out(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A search for text does not print the inside of programs, nor of .git."""
        await sandbox.files.write(f"{directory}/bin", b"hit\0\xff\n")
        await sandbox.files.write(f"{directory}/.git/x", b"hit\n")
        await sandbox.files.write(f"{directory}/text", b"hit\n")
        result = await sandbox.files.search("hit", directory)
        assert [match.path.rsplit("/", 1)[-1] for match in result.matches] == ["text"]

    async def test_a_broken_pattern_is_refused(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A broken pattern is an error, not an empty result."""
        with pytest.raises(InvalidArgument):
            await sandbox.files.search("(", directory)

    async def test_a_search_where_nothing_is_there_is_an_error(self, sandbox: AsyncSandbox, directory: str) -> None:
        """No matches in a directory that does not exist would be a lie."""
        with pytest.raises(FileMissing):
            await sandbox.files.search("x", f"{directory}/nothing")

    async def test_replace_counts_and_keeps_modes(self, sandbox: AsyncSandbox, directory: str) -> None:
        """Every occurrence, or as many as asked for; the rest of the file stays byte for byte."""
        await sandbox.files.write(f"{directory}/x", "a.b a.b axb\r\n", mode=0o750)
        await sandbox.files.replace("a.b", "c", f"{directory}/x")
        assert await sandbox.files.read(f"{directory}/x") == b"c c axb\r\n"
        assert (await sandbox.files.stat(f"{directory}/x")).mode == 0o750

    async def test_replacing_nothing_changes_nothing(self, sandbox: AsyncSandbox, directory: str) -> None:
        """A file without a match keeps its version."""
        before = await sandbox.files.write(f"{directory}/x", b"abc")
        await sandbox.files.replace("nothing like it", "y", f"{directory}/x")
        assert (await sandbox.files.stat(f"{directory}/x")).etag == before.etag
