"""`source=`: a repository or an archive in the working directory before `create` returns."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry import (
    AlreadyExists,
    AsyncSandbox,
    AsyncTemplates,
    Conflict,
    GitError,
    GitSource,
    InvalidArgument,
    SandboxNotFound,
    SkerryError,
    TarSource,
    TemplateBuildFailed,
)
from skerry.sdk.templates.sources import SourceOption
from skerry.templates import Command, File, Scripts, Template
from tests import inventory

pytestmark = pytest.mark.anyio

REPOSITORY = """
git init -q -b main /srv/work && cd /srv/work
git config user.name Somebody && git config user.email somebody@example.invalid
for n in 1 2 3; do echo $n >number; git add number; git commit -qm "commit $n"; done
git tag second HEAD~1
git checkout -qb other && echo other >number && git commit -qam other && git checkout -q main
git clone -q --bare /srv/work /srv/repo.git
git config --system --add safe.directory '*' || git config --global --add safe.directory '*'
"""
WITH_REPOSITORY = Template(name="with-repository", base="host", scripts=Scripts(build=(Command(REPOSITORY, "root"),)))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def _repository() -> AsyncIterator[None]:
    await AsyncTemplates().build(WITH_REPOSITORY)
    yield
    await AsyncTemplates().remove("with-repository")


def archive(path: Path, *names: str, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return path


@pytest.mark.parametrize(
    ("source", "content", "commits"),
    [
        ("file:///srv/repo.git", "3", 3),
        (GitSource(url="file:///srv/repo.git", ref="other"), "other", 4),
        (GitSource(url="file:///srv/repo.git", ref="second", depth=1), "2", 1),
        (GitSource(url="file:///srv/repo.git", depth=2), "3", 2),
    ],
)
async def test_a_repository_fills_the_working_directory(source: SourceOption, content: str, commits: int) -> None:
    async with await AsyncSandbox.create(template="with-repository", source=source) as sandbox:
        result = await sandbox.exec("cat number; git log --oneline | wc -l; stat -c %U number; pwd", check=True)
        assert result.stdout.split() == [content, str(commits), "user", "/workspace"]
        assert not (await sandbox.exec("git status --porcelain")).stdout


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
async def test_an_archive_fills_the_working_directory(tmp_path: Path, mode: str) -> None:
    suffix = mode.partition(":")[2]
    path = archive(tmp_path / f"tree.tar{'.' if suffix else ''}{suffix}", "top/a", "top/b/c", mode=mode)
    async with await AsyncSandbox.create(source=path, workdir="/workspace/deep") as sandbox:
        assert (await sandbox.exec("find . -type f | sort; stat -c %U top/a")).stdout == "./top/a\n./top/b/c\nuser\n"
        assert (await sandbox.exec("ls -A /tmp")).stdout == ""
    async with await AsyncSandbox.create(source=TarSource(location=path, strip=1)) as sandbox:
        assert (await sandbox.exec("cat a b/c")).stdout == "top/atop/b/c"


async def test_an_archive_that_leads_elsewhere_stays_inside(tmp_path: Path) -> None:
    mark = f"escaped-{tmp_path.name}"
    path = archive(tmp_path / "evil.tar", f"../../../../../../var/tmp/{mark}", f"/var/tmp/{mark}", "fine")
    try:
        async with await AsyncSandbox.create(source=path) as sandbox:
            assert (await sandbox.exec("cat fine")).stdout == "fine"
    except TemplateBuildFailed as error:
        assert error.step == "unpack"  # noqa: PT017 - tar may refuse it as well
    assert not Path(f"/var/tmp/{mark}").exists()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (GitSource(url="file:///srv/repo.git", ref="no-such-ref"), GitError),
        (GitSource(url="/srv/nothing.git"), GitError),
        (GitSource(url="https://server.invalid/x.git", password="s3cret-word"), GitError),
        ("https://server.invalid/tree.tar.gz", TemplateBuildFailed),
    ],
)
async def test_a_source_that_cannot_be_fetched_fails_the_create(
    source: SourceOption, error: type[SkerryError], skerry_home: Path
) -> None:
    before = inventory.take(skerry_home)
    with pytest.raises(error) as caught:
        await AsyncSandbox.create(template="with-repository", source=source, network="open", name="never")
    assert "s3cret-word" not in f"{caught.value!r} {source!r}"
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_broken_archive_fails_the_create(tmp_path: Path, skerry_home: Path) -> None:
    path = tmp_path / "broken.tar.gz"
    path.write_bytes(b"\x1f\x8b this is no gzip")
    before = inventory.take(skerry_home)
    with pytest.raises(TemplateBuildFailed) as caught:
        await AsyncSandbox.create(source=path)
    assert caught.value.step == "unpack"
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_program_that_the_sandbox_lacks_to_unpack_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tree.tar"
    path.write_bytes(b"\x89LZO" + bytes(1020))  # tar knows it by its first bytes
    with pytest.raises(TemplateBuildFailed, match="lzop: Cannot exec") as caught:
        await AsyncSandbox.create(source=path)
    assert "the sandbox has no lzop" in (caught.value.hint or "")


async def test_a_repository_takes_no_place_of_files_that_are_there(skerry_home: Path) -> None:
    with pytest.raises(AlreadyExists, match="/srv/work"):
        await AsyncSandbox.create(
            template="with-repository", source="file:///srv/repo.git", user="root", workdir="/srv/work"
        )


@pytest.mark.parametrize(
    "source",
    [
        "https://server.invalid/repo.git",  # without a network
        "git@server.invalid:repo.git",
        "no-such-file.tar",
        Path("/no/such/file"),
        "",
        "--upload-pack=x",
        7,
    ],
)
async def test_a_source_that_makes_no_sense_is_refused_before_anything_happens(source: SourceOption) -> None:
    with pytest.raises(InvalidArgument):
        await AsyncSandbox.create(source=source)


async def test_an_archive_comes_by_https_only() -> None:
    with pytest.raises(InvalidArgument, match="https only"):
        await AsyncSandbox.create(source="http://server.invalid/tree.tar.gz", network="open")


async def test_post_create_finds_the_source(tmp_path: Path) -> None:
    path = archive(tmp_path / "tree.tar", "package.json")
    template = Template(name="installs", base="host", scripts=Scripts(post_create=(Command("cp package.json seen"),)))
    try:
        async with await AsyncSandbox.create(template=template, source=path) as sandbox:
            assert (await sandbox.exec("cat seen")).stdout == "package.json"
    finally:
        await AsyncTemplates().remove("installs")


@pytest.fixture
async def spied() -> AsyncIterator[str]:
    """The name of a template whose curl notes how it was called and what everybody could see, and answers."""
    curl = """#!/bin/sh
{ cat; for each in /proc/[0-9]*/cmdline; do cat $each; echo; done | tr '\\\\0' ' '; echo; } >/home/user/seen.new
echo "$@" >/home/user/called
mv /home/user/seen.new /home/user/seen
while [ "$1" != -o ]; do shift; done
if [ -e /home/user/answer ]; then cp /home/user/answer "$2"; else tar -C /etc -cf "$2" hostname; fi
"""
    template = Template(name="spied", base="host", files={"/opt/npm/bin/curl": File(curl, 0o755)})
    await AsyncTemplates().build(template)
    yield "spied"
    await AsyncTemplates().remove("spied")


async def test_a_password_of_a_url_is_in_no_command_line_and_no_repr(spied: str) -> None:
    source = TarSource(location="https://me:s3cret-word@server.invalid/tree.tar?token=s3cret-word")
    assert "s3cret" not in repr(source)
    async with await AsyncSandbox.create(template=spied, source=source, network="open") as sandbox:
        assert (await sandbox.exec("ls")).stdout == "hostname\n"
        assert "s3cret" not in (await sandbox.exec("cat /home/user/called")).stdout
        seen = (await sandbox.exec("cat /home/user/seen")).stdout
        assert seen.startswith('url = "https://me:s3cret-word@server.invalid/tree.tar?token=s3cret-word"\n')
        assert "curl" in seen
        assert seen.count("s3cret") == 2


async def test_credentials_of_a_repository_are_shown_nowhere() -> None:
    source = GitSource(url="https://me:s3cret-word@server.invalid/x.git")
    assert "s3cret" not in repr(source)
    assert (source.url, source.username, source.password) == ("https://server.invalid/x.git", "me", "s3cret-word")
    assert "s3cret" not in repr(GitSource(url="https://s3cret-word@server.invalid/x.git"))


async def test_an_answer_without_content_is_no_source(spied: str) -> None:
    template = Template(name="mute", base=spied, files={"/home/user/answer": File("")})
    try:
        with pytest.raises(TemplateBuildFailed, match="sent nothing") as caught:
            await AsyncSandbox.create(template=template, source="https://server.invalid/tree.tar", network="open")
        assert caught.value.step == "download"
    finally:
        await AsyncTemplates().remove("mute")


async def test_an_archive_behind_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "link.tar").symlink_to(archive(tmp_path / "tree.tar", "a"))
    async with await AsyncSandbox.create(source=tmp_path / "link.tar") as sandbox:
        assert (await sandbox.exec("cat a")).stdout == "a"


async def test_a_file_that_shows_no_size_is_read_to_its_end(skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    assert Path("/proc/self/environ").stat().st_size == 0
    with pytest.raises(TemplateBuildFailed, match="tar") as caught:  # it has content, which is no archive
        await AsyncSandbox.create(source=Path("/proc/self/environ"))
    assert caught.value.step == "unpack"
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


async def test_a_source_without_content_is_refused_before_anything_happens(tmp_path: Path, skerry_home: Path) -> None:
    before = inventory.take(skerry_home)
    empty = tmp_path / "empty.tar"
    empty.touch()
    gone = TarSource(location=archive(tmp_path / "gone.tar", "a"))
    (tmp_path / "gone.tar").unlink()
    template = Template(name="unmade", base="host", scripts=Scripts(build=(Command("true"),)))
    for source in (empty, gone, tmp_path / "missing.tar"):
        with pytest.raises(InvalidArgument):
            await AsyncSandbox.create(template=template, source=source)
    assert inventory.left(before, inventory.settle(skerry_home, before)) == {}


@pytest.mark.parametrize("user", ["user", "root"])
async def test_links_and_devices_of_an_archive_reach_nothing_outside(tmp_path: Path, user: str) -> None:
    mark = f"escaped-{tmp_path.name}"
    outside = Path("/var/tmp") / mark
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        for name, kind, link in (
            ("absolute", tarfile.SYMTYPE, "/var/tmp"),
            ("hard", tarfile.LNKTYPE, "/etc/passwd"),
            (f"absolute/{mark}", tarfile.REGTYPE, ""),
            ("device", tarfile.CHRTYPE, ""),
            ("pipe", tarfile.FIFOTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.devmajor, entry.devminor = kind, link, 1, 1
            tar.addfile(entry)
    with pytest.raises(TemplateBuildFailed) as caught:
        await AsyncSandbox.create(source=tmp_path / "evil.tar", user=user, name="never")
    assert caught.value.step == "unpack"
    assert not outside.exists()
    with pytest.raises(SandboxNotFound):
        await AsyncSandbox.find("never")


async def test_a_sandbox_from_a_snapshot_gets_its_source_though_the_first_one_had_one(tmp_path: Path) -> None:
    first, second = archive(tmp_path / "first.tar", "a"), archive(tmp_path / "second.tar", "b")
    async with await AsyncSandbox.create(source=first) as sandbox:
        snapshot = await sandbox.snapshots.create()
        async with await AsyncSandbox.create(snapshot=snapshot, source=second) as copy:
            assert (await copy.exec("ls")).stdout == "a\nb\n"
        await sandbox.snapshots.delete(snapshot)


async def test_the_same_create_after_a_reset_fetches_nothing_and_ends_nothing(tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar", "one")
    async with await AsyncSandbox.create(source=source, idempotency_key="again") as first:
        await first.reset(hard=True)
        await first.files.write("one/mine", b"mine")  # what a second unpacking would stumble over
        again = await AsyncSandbox.create(source=source, idempotency_key="again")
        assert again.id == first.id
        assert await first.files.read("one/mine") == b"mine"
        archive(source, "other")
        with pytest.raises(Conflict):
            await AsyncSandbox.create(source=source, idempotency_key="again")
        with pytest.raises(Conflict):
            await AsyncSandbox.create(idempotency_key="again")
        assert await first.files.read("one/mine") == b"mine"
