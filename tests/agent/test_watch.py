"""Watching: every change once, in order, however fast it comes; and nothing is kept for ever."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import wire
from tests.agent.driver.client import Agent, AgentError, Connection, status, wait_until
from tests.agent.driver.watching import Change, Watching


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(AgentError) as caught:
        action()
    return caught.value.code


def instances(agent: Agent) -> int:
    count = 0
    for pid in agent.children():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                count += "inotify" in os.readlink(fd)
            except FileNotFoundError:
                continue
    return count


def resident_kb(agent: Agent) -> int:
    return max(int(status(pid)["VmRSS"].split()[0]) for pid in agent.children())


def settled(watching: Watching, work: Path, name: str = "marker") -> list[Change]:
    """What has come up to a file that is made now."""
    (work / name).touch()
    return [change for change in watching.until("created", name) if change.path != name]


def test_every_kind_of_change_is_told_once_and_in_order(connection: Connection, work: Path) -> None:
    (work / "old").write_text("x")
    (work / "sub").mkdir()
    watching = Watching(connection)
    assert watching.directories == 2
    (work / "new").write_text("hello")
    os.chmod(work / "old", 0o600)
    with (work / "old").open("a") as file:
        file.write("more")
    (work / "sub/inner").mkdir()
    os.rename(work / "new", work / "sub/moved")
    os.unlink(work / "sub/moved")
    os.rmdir(work / "sub/inner")
    assert settled(watching, work) == [
        Change("created", "new", "file"),
        Change("modified", "new", "file"),
        Change("attributes", "old", "file"),
        Change("modified", "old", "file"),
        Change("created", "sub/inner", "dir"),
        Change("renamed", "sub/moved", "file", "new"),
        Change("removed", "sub/moved", "file"),
        Change("removed", "sub/inner", "dir"),
    ]


def test_writes_in_a_row_are_one_change(connection: Connection, work: Path) -> None:
    (work / "log").touch()
    watching = Watching(connection, credits=False, window=1000)
    with (work / "log").open("ab", buffering=0) as file:
        for _ in range(500):
            file.write(b"line\n")
            os.utime(work)  # a change of something else keeps the kernel from joining them
    connection.credit(watching.stream, 0, 1 << 30)
    changes = settled(watching, work)
    assert all(one != other for one, other in itertools.pairwise(changes))
    assert Change("modified", "log", "file") in changes


def test_a_rename_into_or_out_of_the_tree_is_created_or_removed(connection: Connection, work: Path, root: Path) -> None:
    outside = root / "outside"
    (outside / "deep/er").mkdir(parents=True)
    (outside / "deep/er/file").touch()
    (work / "goes/down").mkdir(parents=True)
    watching = Watching(connection)
    os.rename(outside / "deep", work / "deep")
    os.rename(work / "goes", outside / "gone")
    (work / "deep/er/seen").touch()
    assert watching.until("removed", "goes") == [
        Change("created", "deep", "dir"),
        Change("created", "deep/er", "dir"),
        Change("created", "deep/er/file", "file"),
        Change("created", "deep/er/seen", "file"),
    ]
    (outside / "gone/down/unseen").touch()
    os.rename(work / "deep", work / "shallow")
    (work / "shallow/er/later").touch()
    assert settled(watching, work, "marker2") == [
        Change("renamed", "shallow", "dir", "deep"),
        Change("created", "shallow/er/later", "file"),
    ]


@pytest.mark.parametrize("rounds", [200])
def test_a_tree_made_at_once_is_told_completely_and_nothing_twice(
    rounds: int, connection: Connection, work: Path
) -> None:
    watching = Watching(connection)
    script = f"i=0; while [ $i -lt {rounds} ]; do mkdir -p $i/b/c && : > $i/b/c/f; i=$((i+1)); done; : > end"
    subprocess.run(["sh", "-c", script], cwd=work, check=True)
    changes = watching.until("created", "end")
    os.unlink(work / "end")
    changes += watching.until("removed", "end")
    created = [change.path for change in changes if change.kind == "created"]
    expected = {f"{i}{tail}" for i in range(rounds) for tail in ("", "/b", "/b/c", "/b/c/f")}
    assert len(created) == len(set(created))
    assert set(created) <= expected
    missing = expected - set(created)
    assert not missing
    (work / "7/b/c/after").touch()
    watching.until("created", "7/b/c/after")


def test_a_directory_renamed_while_it_fills_keeps_nothing_back(connection: Connection, work: Path) -> None:
    watching = Watching(connection)
    script = "i=0; while [ $i -lt 200 ]; do mkdir d && : > d/f && mv d e$i && : > e$i/g; i=$((i+1)); done"
    subprocess.run(["sh", "-c", script], cwd=work, check=True)
    present: set[str] = set()
    for change in settled(watching, work) + settled(watching, work, "marker2"):
        if change.kind == "created":
            present.add(change.path)
        elif change.kind == "removed":
            present.discard(change.path)
        elif change.kind == "overflow":
            present = {str(path.relative_to(work)) for path in work.rglob("*")} - {"marker", "marker2"}
        elif change.kind == "renamed":
            old, new = change.source, change.path
            present = {new + path[len(old) :] if (path + "/").startswith(old + "/") else path for path in present}
            present.add(new)
    expected = {f"e{i}{tail}" for i in range(200) for tail in ("", "/f", "/g")}
    assert present == expected


def test_a_storm_is_complete_or_says_overflow(connection: Connection, work: Path) -> None:
    watching = Watching(connection)
    subprocess.run(["sh", "-c", "seq 1 10000 | xargs touch; : > end"], cwd=work, check=True)
    changes = watching.until("created", "end")
    names = [change.path for change in changes if change.kind == "created"]
    if not any(change.kind == "overflow" for change in changes):
        assert sorted(names, key=int) == [str(number) for number in range(1, 10001)]
    assert len(names) == len(set(names))


def test_a_client_that_does_not_read_costs_little_and_then_hears_of_the_overflow(
    agent: Agent, connection: Connection, work: Path, binary: Path
) -> None:
    watching = Watching(connection, credits=False, window=1000)
    before = resident_kb(agent)
    long = "x" * 200
    for number in range(40_000):
        os.close(os.open(work / f"{long}{number}", os.O_CREAT | os.O_WRONLY))
    (work / "made/meanwhile").mkdir(parents=True)
    if "asan" not in binary.name:
        assert resident_kb(agent) - before < 16 << 10
    connection.credit(watching.stream, 0, 1 << 30)
    seen = watching.until("overflow", "")
    assert [change.path for change in seen] == [f"{long}{number}" for number in range(len(seen))]
    (work / "made/meanwhile/file").touch()
    assert watching.until("created", "made/meanwhile/file") == []


def test_a_missing_path_a_file_and_an_unreadable_directory(connection: Connection, work: Path) -> None:
    assert code_of(lambda: Watching(connection, "nowhere")) == "FILE_NOT_FOUND"
    (work / "private/inner").mkdir(parents=True)
    os.chmod(work / "private", 0o700)
    assert code_of(lambda: Watching(connection, "private")) == "PERMISSION_DENIED"
    (work / "file").write_text("x")
    (work / "open").mkdir()
    watching = Watching(connection)
    assert watching.directories == 2
    (work / "private/unseen").touch()
    (work / "open/seen").touch()
    assert settled(watching, work) == [Change("created", "open/seen", "file")]
    os.chmod(work / "private", 0o755)
    assert watching.until("created", "private/unseen")[0] == Change("attributes", "private", "dir")
    one = Watching(connection, "file")
    assert one.directories == 0
    (work / "file").write_text("y")
    assert one.more()[0] == Change("modified", "", "file")


def test_the_watch_ends_with_its_path(connection: Connection, work: Path) -> None:
    (work / "dir").mkdir()
    (work / "file").touch()
    removed, moved, file = (Watching(connection, name) for name in ("dir", "dir", "file"))
    (work / "dir/last").touch()
    os.rename(work / "dir", work / "elsewhere")
    assert moved.rest() == [Change("created", "last", "file"), Change("removed", "", "dir")]
    assert moved.count == 2
    assert removed.rest()[-1] == Change("removed", "", "dir")
    with (work / "file").open():
        os.unlink(work / "file")
        assert file.rest()[-1] == Change("removed", "", "file")
    third = Watching(connection, "elsewhere")
    shutil.rmtree(work / "elsewhere")
    assert third.rest() == [Change("removed", "last", "file"), Change("removed", "", "dir")]


def test_without_recursion_only_the_directory_itself_is_told(connection: Connection, work: Path) -> None:
    (work / "sub").mkdir()
    watching = Watching(connection, recursive=False)
    assert watching.directories == 1
    (work / "sub/unseen").touch()
    (work / "new/deep").mkdir(parents=True)
    (work / "new/deep/unseen").touch()
    assert settled(watching, work) == [Change("created", "new", "dir")]


def test_links_are_told_and_not_followed(connection: Connection, work: Path, root: Path) -> None:
    (root / "outside").mkdir()
    watching = Watching(connection)
    os.symlink(root / "outside", work / "link")
    (root / "outside/unseen").touch()
    assert settled(watching, work) == [Change("created", "link", "file")]


def test_close_and_the_end_of_the_connection_free_what_was_used(agent: Agent, connection: Connection) -> None:
    assert instances(agent) == 0
    watches = [Watching(connection) for _ in range(5)]
    other = agent.connect()
    for user in ("root", "user"):
        Watching(other, user=user)
    assert instances(agent) == 7
    for watching in watches:
        watching.close()
    wait_until(lambda: instances(agent) == 2)
    other.close()
    wait_until(lambda: instances(agent) == 0)


def test_a_sandbox_has_at_most_32_watches(agent: Agent, connection: Connection) -> None:
    watches = [Watching(connection, user="root" if number % 2 else "") for number in range(32)]
    assert code_of(lambda: Watching(connection)) == "QUOTA_EXCEEDED"
    watches[0].close()
    Watching(connection)


@pytest.fixture
def quick() -> Iterator[Path]:
    """Memory, where tens of thousands of directories cost little."""
    with tempfile.TemporaryDirectory(prefix="skw-", dir="/dev/shm") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.mark.parametrize("binary", ["all"], indirect=True, ids=["release"])  # the sanitizers take a minute for it
def test_more_directories_than_can_be_watched_is_a_quota(connection: Connection, quick: Path) -> None:
    for number in range(33):
        os.mkdir(quick / str(number))
    subprocess.run(["sh", "-c", "for d in *; do (cd $d && seq 1 1000 | xargs mkdir); done"], cwd=quick, check=True)
    assert code_of(lambda: Watching(connection, str(quick))) == "QUOTA_EXCEEDED"
    shutil.rmtree(quick / "1")
    watching = Watching(connection, str(quick), user="root")
    assert watching.directories == 1 + 32 * 1001
    for number in range(800):
        os.mkdir(quick / f"more{number}")
    with pytest.raises(AgentError) as caught:
        watching.rest()
    assert caught.value.code == "QUOTA_EXCEEDED"


def test_other_requests_are_served_while_a_large_tree_is_registered(connection: Connection, work: Path) -> None:
    subprocess.run(["sh", "-c", "seq 1 5000 | xargs mkdir"], cwd=work, check=True)
    stream = connection.open(wire.Watch(path=b".", flags=1))
    assert connection.stat(".").type_name == "dir"
    assert connection.reply(stream, wire.Watching, final=False).directories == 5001


def test_a_window_that_no_event_fits_in_is_refused(connection: Connection, work: Path) -> None:
    watching = Watching(connection, window=10)
    (work / "file").touch()
    assert code_of(watching.more) == "INVALID_ARGUMENT"
