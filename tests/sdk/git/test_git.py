"""Git in real sandboxes: real repositories, local remotes, and a server that wants a password."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import (
    AlreadyExists,
    AsyncSandbox,
    CommandNotFound,
    ExecTimeout,
    FileMissing,
    GitError,
    InvalidArgument,
    NotADirectory,
    PermissionDenied,
    RepositoryNotFound,
    Sandbox,
    Unauthenticated,
)

WHO = {"author_name": "Ann Author", "author_email": "ann@example.com"}
PASSWORD = "s3cret-Pässword"
SERVER = """
import base64, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
EXPECTED = "Basic " + base64.b64encode(sys.stdin.readline().strip().encode()).decode()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/elsewhere/"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/" + self.path[11:])
            self.end_headers()
            return
        given = self.headers.get("Authorization")
        with open("/tmp/asked", "a") as log:
            log.write(f"{self.headers['Host'].split(':')[0]} {bool(given)}\\n")
        if given != EXPECTED:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT="/workspace/served", GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path,
                   QUERY_STRING=query, REQUEST_METHOD=self.command, REMOTE_USER="tester",
                   CONTENT_TYPE=self.headers.get("Content-Type", ""), CONTENT_LENGTH=str(len(body)),
                   HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
                   GIT_PROTOCOL=self.headers.get("Git-Protocol", ""))
        out = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, rest = out.partition(b"\\r\\n\\r\\n")
        status, headers = 200, []
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)
    do_POST = do_GET
    def log_message(self, *args):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        with anyio.fail_after(90):
            yield sandbox


@pytest.fixture
async def remote(box: AsyncSandbox) -> str:
    """A bare repository with two commits on main, a branch `side` and a tag `v1`."""
    script = """
    export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
    git init -q -b main seed && cd seed && echo one > file && git add . && git commit -q -m first && git tag v1
    git branch side && echo two >> file && git commit -q -a -m 'second: ä' -m 'A body.'
    mkdir -p ../served && git clone -q --bare . ../served/project.git && rm -rf ../seed
    git -C ../served/project.git config http.receivepack true
    """
    await box.exec(script, check=True)
    return "/workspace/served/project.git"


@pytest.fixture
async def server(box: AsyncSandbox, remote: str) -> str:
    """host:port of a server for it that wants the password."""
    process = await box.processes.spawn(["python3", "-c", SERVER], stdin=True)
    await process.write_stdin(f"tester:{PASSWORD}\n")
    async for chunk in process:
        return f"127.0.0.1:{int(chunk.data)}"
    raise AssertionError("the server ended")


async def test_a_repository_is_cloned_changed_and_pushed(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    path = await git.clone(remote)
    assert path == "/workspace/project"
    assert (await git.status("project")).clean
    await box.files.write("project/new file\n", "x")
    await box.files.append("project/file", "three\n")
    await box.exec("cd project && git mv file renamed", check=True)
    status = await git.status(path)
    assert (status.branch, status.upstream, status.ahead, status.behind) == ("main", "origin/main", 0, 0)
    found = {file.path: (file.index, file.worktree, file.old_path) for file in status.files}
    assert found == {"renamed": ("R", "M", "file"), "new file\n": ("?", "?", None)}
    assert {file.path for file in status.files if file.untracked} == {"new file\n"}
    assert "+three" in await git.diff(path)
    await git.add(path, ["new file\n"])
    await git.add(path, all=True)
    assert await git.diff(path) == ""
    assert "rename to renamed" in await git.diff(path, staged=True)
    made = await git.commit(path, "# third\n\nwhy: ü", **WHO)
    assert (made.subject, made.message) == ("# third", "# third\n\nwhy: ü")
    assert (made.author_name, made.author_email) == ("Ann Author", "ann@example.com")
    assert (await git.status(path)).ahead == 1
    await git.push(path)
    status = await git.status(path)
    assert (status.ahead, status.commit) == (0, made.id)
    log = await git.log(remote)
    assert [commit.subject for commit in log] == ["# third", "second: ä", "first"]
    assert log[0] == made and log[1].message == "second: ä\n\nA body." and log[0].parents == (log[1].id,)
    assert [commit.subject for commit in await git.log(path, limit=1, ref="v1")] == ["first"]
    assert "+two" in await git.diff(path, ref="v1..HEAD~1", paths="file")
    assert await git.diff(path, ref="v1..HEAD~1", paths="renamed") == ""
    await box.files.write("project/grüße", "x")
    await git.add(path, "grüße")
    assert "+++ b/grüße" in await git.diff(path, staged=True)


async def test_branches_are_made_checked_out_and_deleted(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    await git.clone(remote, "repo")
    await git.create_branch("repo", "feature", start="v1")
    await git.checkout("repo", "feature")
    await git.commit("repo", "empty", allow_empty=True, **WHO)
    await git.push("repo", set_upstream=True)
    branches = {branch.name: branch for branch in await git.branches("repo")}
    assert set(branches) == {"main", "feature", "origin/main", "origin/side", "origin/feature"}
    assert branches["feature"].current and branches["feature"].upstream == "origin/feature"
    assert branches["origin/side"].remote and not branches["main"].current
    await git.checkout("repo", "side")
    await git.checkout("repo", "other", create=True)
    await git.checkout("repo", "v1")
    assert (await git.status("repo")).branch is None
    await git.delete_branch("repo", "other")
    await git.checkout("repo", "main")
    await git.create_branch("repo", "lonely", start="feature")
    with pytest.raises(GitError, match="not fully merged"):
        await git.delete_branch("repo", "lonely")
    await git.delete_branch("repo", "lonely", force=True)


async def test_a_pull_merges_or_rebases(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    for name in ("one", "two"):
        await git.clone(remote, name)
        await box.files.write(f"{name}/{name}.txt", name)
        await git.add(name, f"{name}.txt")
        await git.commit(name, f"from {name}", **WHO)
    await git.push("one")
    with pytest.raises(GitError) as refused:
        await git.push("two")
    assert "pull first" in refused.value.hint and refused.value.code == "GIT_FAILED"
    assert refused.value.result.exit_code == 1
    for name, value in (("user.name", "B"), ("user.email", "b@c")):
        await box.exec(["git", "config", "--global", name, value], check=True)
    head = await git.pull("two", rebase=True)
    assert head.subject == "from two" and len(head.parents) == 1
    await git.push("two")
    assert (await git.pull("one", branch="main")).id == head.id
    await box.files.write("one/one.txt", "mine")
    await box.files.write("two/one.txt", "theirs")
    for name in ("one", "two"):
        await git.add(name, all=True)
        await git.commit(name, "clash")
    await git.push("one")
    with pytest.raises(GitError) as clash:
        await git.pull("two")
    assert "conflicts" in clash.value.hint
    (file,) = (await git.status("two")).files
    assert file.conflicted and not file.staged and file.path == "one.txt"


async def test_a_clone_takes_a_branch_a_ref_or_only_the_last_commits(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    first = (await git.log(remote, ref="v1"))[0].id
    await git.clone(remote, "side", branch="side")
    assert (await git.status("side")).branch == "side"
    await git.clone(remote, "at", ref=first[:10])
    status = await git.status("at")
    assert (status.commit, status.branch, status.clean) == (first, None, True)
    await git.clone(f"file://{remote}", "shallow", depth=1)
    assert len(await git.log("shallow")) == 1
    await git.clone(f"file://{remote}", "shallow-at", ref=first, depth=1)
    status = await git.status("shallow-at")
    assert (status.commit, status.clean) == (first, True)
    await git.clone(remote, "branch-as-ref", ref="side")
    assert (await git.status("branch-as-ref")).branch == "side"


async def test_a_clone_that_fails_leaves_nothing(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    with pytest.raises(GitError):
        await git.clone(remote, "bad", ref="no-such-ref")
    with pytest.raises(RepositoryNotFound) as missing:
        await git.clone("/workspace/nothing", "bad")
    assert missing.value.code == "REPOSITORY_NOT_FOUND"
    # A server that accepts and never answers.
    silent = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 7777)); print('up', flush=True); time.sleep(900)"
    )
    process = await box.processes.spawn(["python3", "-c", silent])
    async for _ in process:
        break
    with pytest.raises(ExecTimeout):
        await git.clone("http://127.0.0.1:7777/x.git", "bad", timeout=1)
    assert not await box.files.exists("bad")
    await box.files.write("bad/mine", "x")
    with pytest.raises(AlreadyExists):
        await git.clone(remote, "bad")
    assert await box.files.exists("bad/mine")


async def test_what_is_no_repository_has_its_own_error(box: AsyncSandbox, remote: str) -> None:
    git = box.git
    with pytest.raises(FileMissing):
        await git.status("nowhere")
    await box.files.write("file", "")
    with pytest.raises(NotADirectory):
        await git.status("file")
    with pytest.raises(RepositoryNotFound):
        await git.status("/tmp")
    await git.clone(remote, "repo")
    with pytest.raises(PermissionDenied) as foreign:
        await git.status("repo", user="root")
    assert "user=" in foreign.value.hint
    with pytest.raises(GitError) as nothing:
        await git.commit("repo", "nothing", **WHO)
    assert "allow_empty" in nothing.value.hint
    await box.exec("cd repo && git config user.useConfigOnly true", check=True)
    with pytest.raises(GitError) as nobody:
        await git.commit("repo", "x", allow_empty=True)
    assert "author_name" in nobody.value.hint


async def test_a_sandbox_without_git_says_so(box: AsyncSandbox) -> None:
    await box.env.set("PATH", "/nowhere")
    with pytest.raises(CommandNotFound) as missing:
        await box.git.status("/workspace")
    assert "git" in missing.value.hint


async def test_what_git_could_take_for_an_option_is_refused(box: AsyncSandbox, remote: str) -> None:
    git, bad = box.git, "--upload-pack=touch /tmp/owned"
    await git.clone(remote, "repo")
    attempts = [
        lambda: git.clone(bad, "x"),
        lambda: git.clone(remote, "x", branch=bad),
        lambda: git.clone(remote, "x", ref=bad),
        lambda: git.checkout("repo", bad),
        lambda: git.checkout("repo", bad, create=True),
        lambda: git.create_branch("repo", bad),
        lambda: git.create_branch("repo", "b", start=bad),
        lambda: git.delete_branch("repo", bad),
        lambda: git.push("repo", remote=bad),
        lambda: git.push("repo", branch=bad),
        lambda: git.pull("repo", remote=bad),
        lambda: git.pull("repo", branch=bad),
        lambda: git.log("repo", ref="--output=/tmp/owned"),
        lambda: git.diff("repo", ref="--output=/tmp/owned"),
        lambda: git.clone(remote, "x", depth=0),
        lambda: git.clone(remote, "x", branch="a", ref="b"),
        lambda: git.clone(remote, "x", password="p"),
        lambda: git.clone("https://u:p@host/x", "x", password="p"),
        lambda: git.clone("https://host/x", "x", password="p\nhost=other"),
        lambda: git.add("repo"),
        lambda: git.commit("repo", " "),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidArgument) as refused:
            await attempt()
        assert "p@" not in str(refused.value)
    await box.files.write("repo/--all", "")
    await git.add("repo", "--all")
    assert [file.path for file in (await git.status("repo")).files] == ["--all"]
    assert await git.clone(remote, "-dash") == "/workspace/-dash"
    assert not await box.files.exists("/tmp/owned")


async def left_in(box: AsyncSandbox, secret: str) -> str:
    """Where the sandbox still has it: files, and environments and arguments of processes."""
    script = r"""
    secret=$(cat)
    grep -rlF -e "$secret" /workspace /home /tmp /var/tmp /dev/shm 2>/dev/null
    for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do
        case $file in /proc/$$/*) ;; *) tr '\0' '\n' < "$file" 2>/dev/null | grep -qF -e "$secret" && echo "$file" ;; esac
    done
    true
    """
    return (await box.exec(script, stdin=secret, user="root", check=True)).stdout


async def test_credentials_work_and_do_not_stay(box: AsyncSandbox, server: str) -> None:
    git, login = box.git, {"username": "tester", "password": PASSWORD}
    url = f"http://{server}/project.git"
    # Helpers that would store what they are told must not be asked.
    for key in ("credential.helper", f"credential.http://{server}.helper"):
        await box.exec(["git", "config", "--global", key, "store --file=/tmp/stored"], check=True)
    path = await git.clone(url, **login)
    await git.commit(path, "over http", allow_empty=True, **WHO)
    await git.push(path, **login)
    await git.clone(f"http://tester:{PASSWORD.replace('ä', '%C3%A4')}@{server}/project.git", "embedded")
    assert (await git.log("embedded", limit=1))[0].subject == "over http"
    await git.commit("embedded", "again", allow_empty=True, **WHO)
    await git.push("embedded", **login)
    assert (await git.pull(path, **login)).subject == "again"
    for repository in (path, "embedded"):
        assert (await box.exec(["git", "remote", "get-url", "origin"], cwd=repository)).stdout == f"{url}\n"
    assert await left_in(box, PASSWORD) == ""
    assert not await box.files.exists("/tmp/stored")
    await box.files.write("planted", PASSWORD)
    assert await left_in(box, PASSWORD) == "/workspace/planted\n"


async def test_wrong_or_missing_credentials_are_unauthenticated(box: AsyncSandbox, server: str) -> None:
    git, url = box.git, f"http://{server}/project.git"
    for login in ({}, {"username": "tester", "password": "wrong"}, {"password": "token"}):
        with pytest.raises(Unauthenticated) as refused:
            await git.clone(url, "x", **login)
        assert "wrong" not in str(refused.value)
    assert not await box.files.exists("x")
    await git.clone(url, "x", username="tester", password=PASSWORD)
    with pytest.raises(Unauthenticated):
        await git.pull("x")
    with pytest.raises(RepositoryNotFound):
        await git.clone(f"http://{server}/other.git", "y", username="tester", password=PASSWORD)


async def test_credentials_go_to_no_other_server(box: AsyncSandbox, server: str) -> None:
    with pytest.raises(Unauthenticated):
        await box.git.clone(f"http://{server}/elsewhere/project.git", "x", username="tester", password=PASSWORD)
    assert set((await box.files.read_text("/tmp/asked")).splitlines()) == {"localhost False"}


async def test_submodules_come_with_the_same_credentials(box: AsyncSandbox, server: str) -> None:
    git, login = box.git, {"username": "tester", "password": PASSWORD}
    inner = await git.clone(f"http://{server}/project.git", "inner", **login)
    commit = (await git.log(inner, limit=1))[0].id
    config = f'[submodule "lib"]\n\tpath = lib\n\turl = http://{server}/project.git\n'
    await box.files.write("outer/.gitmodules", config)
    await box.exec(
        f"git init -q -b main . && git update-index --add --cacheinfo 160000,{commit},lib", cwd="outer", check=True
    )
    await git.add("outer", ".gitmodules")
    made = await git.commit("outer", "with a library", **WHO)
    await box.exec("git clone -q --bare outer served/outer.git", check=True)
    for number, options in enumerate(({}, {"ref": made.id}, {"ref": made.id, "depth": 1})):
        path = await git.clone(
            f"http://{server}/outer.git", f"copy{number}", recurse_submodules=True, **login, **options
        )
        assert await box.files.read_text(f"{path}/lib/file") == "one\ntwo\n"
        assert (await git.status(path)).clean
    assert await left_in(box, PASSWORD) == ""


def test_the_blocking_git_is_the_same() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        sandbox.exec("git init -q -b main repo", check=True)
        status = sandbox.git.status("repo")
        assert (status.branch, status.commit, status.clean) == ("main", None, True)
        made = sandbox.git.commit("repo", "first", allow_empty=True, **WHO)
        assert sandbox.git.log("repo") == [made]
