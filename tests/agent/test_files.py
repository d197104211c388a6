"""Files: with the user's rights, atomically, and never in the way of anything else."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.driver.client import Agent, AgentError, Connection, let_go, status, trace, wait_until

APPEND, PARENTS, NEW = 1, 2, 4
INFO = wire.FileInfoMessage


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(AgentError) as caught:
        action()
    return caught.value.code


def temps(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if ".skerry-" in name]


def test_what_is_written_can_be_read(connection: Connection, work: Path) -> None:
    for content in (b"", b"hello\n", os.urandom(5_000_000)):
        info = connection.write("file", content)
        assert (info.path, info.type_name, info.size) == (os.fsencode(work / "file"), "file", len(content))
        assert (info.mode, info.uid, info.gid) == (0o644, 1000, 1000)
        assert (work / "file").read_bytes() == content
        read, got = connection.read("file")
        assert (got, read) == (content, info)
    assert temps(work) == []


def test_a_part_of_a_file_can_be_read(connection: Connection) -> None:
    connection.write("file", bytes(range(200)))
    assert connection.read("file", offset=10, length=5)[1] == bytes(range(10, 15))
    assert connection.read("file", offset=190)[1] == bytes(range(190, 200))
    assert connection.read("file", offset=190, length=100)[1] == bytes(range(190, 200))
    assert connection.read("file", offset=999)[1] == b""
    assert connection.read("file", length=0)[1] == b""
    assert code_of(lambda: connection.read("file", offset=-1)) == "INVALID_ARGUMENT"


def test_a_read_keeps_to_its_window(connection: Connection) -> None:
    content = os.urandom(300_000)
    connection.write("file", content)
    stream = connection.open(wire.Read(path=b"file", window=1000))
    connection.reply(stream, INFO, final=False)
    got = b""
    while len(got) < len(content):
        data = wire.parse_data(connection.next(stream).payload)[1]
        assert len(data) <= 1000
        got += data
        assert not connection.waiting.get(stream)
        connection.credit(stream, 0, len(data))
    assert got == content


def test_files_of_proc_can_be_read(connection: Connection) -> None:
    info, content = connection.read("/proc/version")
    assert content == Path("/proc/version").read_bytes()
    assert info.size == 0


def test_what_processes_keep_is_no_file(connection: Connection, work: Path) -> None:
    _, started = connection.start("sleep", "60", env=(b"SECRET=hidden",))
    process = Path(f"/proc/{started.pid}")
    wait_until(lambda: (process / "cmdline").read_bytes() == b"sleep\x0060\x00")
    assert b"SECRET=hidden" in (process / "environ").read_bytes()
    connection.ask(wire.Symlink(path=b"link", target=os.fsencode(process)), INFO)
    for path in (f"{process}/environ", f"{process}/task/{started.pid}/environ", "link/environ", f"{process}/mem"):
        assert code_of(lambda path=path: connection.read(path)) == "PERMISSION_DENIED"
    assert code_of(lambda: connection.stat(f"{process}/root/etc/passwd")) == "PERMISSION_DENIED"
    assert connection.read(f"{process}/cmdline")[1] == b"sleep\x0060\x00"


def test_many_files_at_once_on_one_connection(connection: Connection) -> None:
    contents = {f"f{number}": os.urandom(200_000 + number) for number in range(20)}
    writes = {}
    for name, content in contents.items():
        stream = connection.open(wire.Write(path=name.encode()))
        writes[stream] = content
    for step in range(0, 220_000, 50_000):
        for stream, content in writes.items():
            connection.data(stream, content[step : step + 50_000], offset=step)
    for stream in writes:
        connection.data(stream, b"", end=True)
    for stream, content in writes.items():
        assert connection.reply(stream, INFO).size == len(content)
    reads = {connection.open(wire.Read(path=name.encode(), window=1 << 30)): name for name in contents}
    for stream, name in reads.items():
        connection.reply(stream, INFO, final=False)
        got = b""
        while not (frame := connection.next(stream)).flags & wire.END:
            got += bytes(wire.parse_data(frame.payload)[1])
        assert got == contents[name]


def test_a_reader_that_stops_does_not_stop_the_others(agent: Agent, connection: Connection) -> None:
    connection.write("big", b"x" * 30_000_000)
    lazy = agent.connect()
    before = agent.rss_kb()
    for _ in range(400):
        lazy.open(wire.Read(path=b"big", window=1 << 31))
    for _ in range(20):
        assert connection.read("big", length=100_000)[1] == b"x" * 100_000
    grown = agent.rss_kb() - before
    assert grown < 8_000 or ("asan" in agent.binary.name and grown < 40_000)  # which keeps what is freed for a while


def test_a_write_into_a_link_writes_its_target(connection: Connection, work: Path) -> None:
    (work / "dir").mkdir()
    os.chown(work / "dir", 1000, 1000)
    (work / "dir/real").write_bytes(b"old")
    os.chown(work / "dir/real", 1000, 1000)
    (work / "link").symlink_to("dir/real")
    (work / "link2").symlink_to(work / "link")
    info = connection.write("link2", b"new")
    assert info.path == os.fsencode(work / "link2")
    assert (work / "dir/real").read_bytes() == b"new"
    assert (work / "link").is_symlink()
    (work / "dangling").symlink_to("dir/made")
    connection.write("dangling", b"made")
    assert (work / "dir/made").read_bytes() == b"made"
    assert temps(work) == temps(work / "dir") == []


def test_a_write_keeps_mode_and_owner(connection: Connection, work: Path) -> None:
    connection.write("script", b"#!/bin/sh\n", mode=0o754)
    assert stat.S_IMODE((work / "script").stat().st_mode) == 0o754
    assert connection.write("script", b"#!/bin/sh\nexit 3\n", mode=0o600).mode == 0o754
    connection.write("script", b"by root", user="root")
    assert ((work / "script").stat().st_uid, (work / "script").stat().st_gid) == (1000, 1000)


def test_a_read_only_file_is_refused(connection: Connection, work: Path) -> None:
    connection.write("file", b"old", mode=0o444)
    for flags in (0, APPEND):
        assert code_of(lambda flags=flags: connection.write("file", b"new", flags=flags)) == "PERMISSION_DENIED"  # type: ignore[misc]
    assert (work / "file").read_bytes() == b"old"
    assert temps(work) == []


def test_a_file_of_somebody_else_is_refused_and_untouched(connection: Connection, work: Path) -> None:
    (work / "theirs").write_bytes(b"old")
    (work / "theirs").chmod(0o666)
    assert code_of(lambda: connection.write("theirs", b"new")) == "PERMISSION_DENIED"
    assert (work / "theirs").read_bytes() == b"old"
    assert temps(work) == []
    connection.write("theirs", b"+", flags=APPEND)
    assert (work / "theirs").read_bytes() == b"old+"


def test_the_users_rights_are_what_counts(connection: Connection, root: Path) -> None:
    secret = root / "secret"
    secret.write_bytes(b"s")
    secret.chmod(0o600)
    assert code_of(lambda: connection.read(str(secret))) == "PERMISSION_DENIED"
    assert code_of(lambda: connection.write(str(root / "new"), b"")) == "PERMISSION_DENIED"
    assert code_of(lambda: connection.ask(wire.Remove(path=os.fsencode(secret)), wire.Count)) == "PERMISSION_DENIED"
    assert (
        code_of(lambda: connection.ask(wire.Chmod(path=os.fsencode(secret), mode=0o666), INFO)) == "PERMISSION_DENIED"
    )
    assert code_of(lambda: connection.list("/root")) == "PERMISSION_DENIED"
    assert connection.read(str(secret), user="root")[1] == b"s"
    assert code_of(lambda: connection.read(str(secret), user="no-such-user")) == "INVALID_ARGUMENT"
    (root / "group").write_bytes(b"g")
    os.chown(root / "group", 0, 4711)
    (root / "group").chmod(0o640)
    assert connection.read(str(root / "group"), user="4711")[1] == b"g"


def test_at_most_8_users_have_a_worker(connection: Connection) -> None:
    for number in range(6):  # beside root and the sandbox's user
        connection.stat("/", user=str(5000 + number))
    assert code_of(lambda: connection.stat("/", user="6000")) == "QUOTA_EXCEEDED"
    connection.stat("/", user="5000")


def test_new_refuses_an_existing_file(connection: Connection, work: Path) -> None:
    connection.write("file", b"first", flags=NEW)
    assert code_of(lambda: connection.write("file", b"second", flags=NEW)) == "ALREADY_EXISTS"
    (work / "dangling").symlink_to("nowhere")
    assert code_of(lambda: connection.write("dangling", b"x", flags=NEW)) == "ALREADY_EXISTS"
    stream = connection.open(wire.Write(path=b"race", flags=NEW))
    connection.data(stream, b"mine")
    connection.stat(".")
    (work / "race").write_bytes(b"theirs")
    connection.data(stream, b"", end=True)
    assert code_of(lambda: connection.reply(stream, INFO)) == "ALREADY_EXISTS"
    assert (work / "race").read_bytes() == b"theirs"
    assert temps(work) == []


def test_append_adds_to_the_end(connection: Connection, work: Path) -> None:
    assert connection.write("log", b"one\n", flags=APPEND, mode=0o600).mode == 0o600
    info = connection.write("log", b"two\n", flags=APPEND)
    assert (info.size, (work / "log").read_bytes()) == (8, b"one\ntwo\n")


def test_parents_are_made_on_request(connection: Connection, work: Path) -> None:
    assert code_of(lambda: connection.write("a/b/c", b"x")) == "FILE_NOT_FOUND"
    connection.write("a/b/c", b"x", flags=PARENTS)
    made = (work / "a/b").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode)) == (1000, 0o755)
    assert code_of(lambda: connection.write("a/b/c/d", b"x", flags=PARENTS)) == "NOT_A_DIRECTORY"


def test_a_write_given_up_leaves_the_old_file_and_no_temporary(
    agent: Agent, connection: Connection, work: Path
) -> None:
    connection.write("file", b"old")
    for end in ("close", "disconnect"):
        other = agent.connect()
        stream = other.open(wire.Write(path=b"file"))
        other.data(stream, b"half of the new cont")
        wait_until(lambda: len(temps(work)) == 1)
        if end == "close":
            other.send(stream, Type.CLOSE)
        else:
            other.close()
        wait_until(lambda: temps(work) == [])
    assert (work / "file").read_bytes() == b"old"


def test_temporaries_go_when_the_agent_goes(agent: Agent, connection: Connection, work: Path) -> None:
    connection.data(connection.open(wire.Write(path=b"file")), b"half")
    wait_until(lambda: len(temps(work)) == 1)
    agent.process.terminate()
    wait_until(lambda: temps(work) == [])


def test_a_full_disk_is_its_own_error(connection: Connection, root: Path) -> None:
    disk = root / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=777", "none", disk], check=True)
    try:
        connection.write(str(disk / "file"), b"old")
        assert code_of(lambda: connection.write(str(disk / "file"), b"x" * 1_000_000)) == "DISK_FULL"
        assert (disk / "file").read_bytes() == b"old"
        assert os.listdir(disk) == ["file"]
        remount = ["mount", "-o", "remount,ro", disk]
        wait_until(lambda: subprocess.run(remount).returncode == 0)  # once the worker has closed what failed
        assert code_of(lambda: connection.write(str(disk / "file"), b"x")) == "READ_ONLY"
        assert code_of(lambda: connection.write(str(disk / "new"), b"x")) == "READ_ONLY"
        assert code_of(lambda: connection.ask(wire.MkDir(path=os.fsencode(disk / "d")), INFO)) == "READ_ONLY"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_special_files_are_not_opened(connection: Connection, work: Path) -> None:
    os.mkfifo(work / "fifo")
    (work / "fifo").chmod(0o666)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(work / "socket"))
    (work / "socket").chmod(0o666)
    begin = time.monotonic()
    for path in ("fifo", "socket", "/dev/zero", "/dev/tty"):
        assert code_of(lambda path=path: connection.read(path)) == "NOT_A_FILE"  # type: ignore[misc]
        for flags in (0, APPEND):
            assert code_of(lambda path=path, flags=flags: connection.write(path, b"", flags=flags)) == "NOT_A_FILE"  # type: ignore[misc]
    for path in (".", "/"):
        assert code_of(lambda path=path: connection.read(path)) == "IS_A_DIRECTORY"  # type: ignore[misc]
        assert code_of(lambda path=path: connection.write(path, b"")) == "IS_A_DIRECTORY"  # type: ignore[misc]
    assert time.monotonic() - begin < 5
    kinds = {entry.path: entry.type_name for entry in connection.list(".")}
    assert kinds == {b"fifo": "fifo", b"socket": "socket"}
    assert connection.stat("/dev/null").type_name == "char"
    listener.close()


def test_a_read_does_not_wake_who_waits_at_a_fifo(connection: Connection, work: Path) -> None:
    os.mkfifo(work / "fifo")
    (work / "fifo").chmod(0o666)
    stream, started = connection.start("/bin/sh", "-c", "echo x > fifo", flags=1)
    wait_until(lambda: Path(f"/proc/{started.pid}/wchan").exists())
    time.sleep(0.1)
    assert code_of(lambda: connection.read("fifo")) == "NOT_A_FILE"
    assert code_of(lambda: connection.write("fifo", b"")) == "NOT_A_FILE"
    time.sleep(0.1)
    assert connection.processes()[started.id].status == "running"
    assert (work / "fifo").read_bytes() == b"x\n"
    assert connection.output(stream)[0].exit_code == 0


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (b"nothing", "FILE_NOT_FOUND"),
        (b"nothing/x", "FILE_NOT_FOUND"),
        (b"/etc/passwd/x", "NOT_A_DIRECTORY"),
        (b"loop", "INVALID_ARGUMENT"),
        (b"loop/x", "INVALID_ARGUMENT"),
        (b"x" * 256, "INVALID_ARGUMENT"),
        (b"x/" * 2100, "INVALID_ARGUMENT"),
        (b"x" * 60_000, "INVALID_ARGUMENT"),
        (b"", "INVALID_ARGUMENT"),
        (b"a\0b", "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_path_has_its_own_error(connection: Connection, work: Path, path: bytes, code: str) -> None:
    (work / "loop").symlink_to("loop")
    for action in (connection.read, connection.stat, connection.list):
        assert code_of(lambda action=action: action(path)) == code  # type: ignore[misc]
    if path != b"nothing":
        assert code_of(lambda: connection.write(path, b"")) == code


def test_stat_follows_links_unless_told(connection: Connection, work: Path) -> None:
    (work / "file").write_bytes(b"12345")
    (work / "link").symlink_to("file")
    followed, link = connection.stat("link"), connection.stat("link", flags=1)
    assert (followed.type_name, followed.size, followed.target) == ("file", 5, b"")
    assert (link.type_name, link.target) == ("link", b"file")
    real = (work / "file").stat()
    assert (followed.inode, followed.mtime_ns, followed.mode) == (real.st_ino, real.st_mtime_ns, 0o644)
    assert (followed.uid, followed.owner, followed.group) == (0, "root", "root")


def test_mkdir_makes_directories(connection: Connection, work: Path) -> None:
    info = connection.ask(wire.MkDir(path=b"one", mode=0o777), INFO)
    assert (info.type_name, info.mode, info.uid) == ("dir", 0o777, 1000)
    assert connection.ask(wire.MkDir(path=b"two/"), INFO).mode == 0o755
    assert code_of(lambda: connection.ask(wire.MkDir(path=b"one"), INFO)) == "ALREADY_EXISTS"
    assert code_of(lambda: connection.ask(wire.MkDir(path=b"x/y/z"), INFO)) == "FILE_NOT_FOUND"
    assert connection.ask(wire.MkDir(path=b"x/y/z", mode=0o700, flags=1), INFO).mode == 0o700
    assert connection.ask(wire.MkDir(path=b"x/y/z", flags=1), INFO).mode == 0o700
    (work / "file").touch()
    assert code_of(lambda: connection.ask(wire.MkDir(path=b"file", flags=1), INFO)) == "ALREADY_EXISTS"
    assert code_of(lambda: connection.ask(wire.MkDir(path=b"file/x", flags=1), INFO)) == "NOT_A_DIRECTORY"


def test_rename_chmod_chown_symlink(connection: Connection, work: Path) -> None:
    connection.write("a", b"a")
    connection.write("b", b"b")
    info = connection.ask(wire.Rename(path=b"a", target=b"c"), INFO)
    assert (info.path, info.size) == (os.fsencode(work / "c"), 1)
    assert code_of(lambda: connection.ask(wire.Rename(path=b"c", target=b"b", flags=1), INFO)) == "ALREADY_EXISTS"
    connection.ask(wire.Rename(path=b"c", target=b"b"), INFO)
    assert (work / "b").read_bytes() == b"a"
    assert code_of(lambda: connection.ask(wire.Rename(path=b"zz", target=b"b"), INFO)) == "FILE_NOT_FOUND"
    for directory in (b"one", b"one/two"):
        connection.ask(wire.MkDir(path=directory), INFO)
    for source, target in ((b"b", b"one/b"), (b"one/b", b"one/two/b"), (b"one/two", b"two"), (b"two/b", b"b")):
        connection.ask(wire.Rename(path=source, target=target), INFO)
    assert connection.ask(wire.Chmod(path=b"b", mode=0o600), INFO).mode == 0o600
    assert code_of(lambda: connection.ask(wire.Chmod(path=b"b", mode=0o77777), INFO)) == "INVALID_ARGUMENT"
    assert code_of(lambda: connection.ask(wire.Chown(path=b"b", owner="root"), INFO)) == "PERMISSION_DENIED"
    assert code_of(lambda: connection.ask(wire.Chown(path=b"b", owner="no-such"), INFO)) == "INVALID_ARGUMENT"
    info = connection.ask(wire.Chown(path=b"b", owner="daemon", group="4711", user="root"), INFO)
    assert (info.owner, info.gid, info.group) == ("daemon", 4711, "")
    assert connection.ask(wire.Chown(path=b"b", group="root", user="root"), INFO).owner == "daemon"
    info = connection.ask(wire.Symlink(path=b"link", target=b"not/there"), INFO)
    assert (info.type_name, info.target, os.readlink(work / "link")) == ("link", b"not/there", "not/there")
    assert code_of(lambda: connection.ask(wire.Symlink(path=b"link", target=b"x"), INFO)) == "ALREADY_EXISTS"


def test_list_is_sorted_and_goes_as_deep_as_asked(connection: Connection, work: Path) -> None:
    for path in ("b/inner/deep", "a", "c/x"):
        connection.write(path, b"", flags=PARENTS)
    (work / "b.txt").touch()
    (work / "link").symlink_to("b")
    names = lambda **options: [entry.path.decode() for entry in connection.list(".", **options)]  # noqa: E731
    assert names() == ["a", "b", "b.txt", "c", "link"]
    assert names(depth=2) == ["a", "b", "b/inner", "b.txt", "c", "c/x", "link"]
    assert names(depth=1 << 40) == ["a", "b", "b/inner", "b/inner/deep", "b.txt", "c", "c/x", "link"]
    assert [entry.path for entry in connection.list("link")] == [b"inner"]  # the path itself is followed
    assert code_of(lambda: connection.list(".", depth=0)) == "INVALID_ARGUMENT"
    assert code_of(lambda: connection.list("a")) == "NOT_A_DIRECTORY"
    entry = {entry.path: entry for entry in connection.list(".")}[b"link"]
    assert (entry.type_name, entry.target) == ("link", b"b")


def test_a_directory_that_cannot_be_opened_is_listed_but_not_entered(connection: Connection, work: Path) -> None:
    (work / "closed").mkdir(mode=0o700)
    (work / "closed/x").touch()
    assert [entry.path for entry in connection.list(".", depth=3)] == [b"closed"]


def test_list_of_20_thousand_entries_in_a_small_window(connection: Connection, work: Path) -> None:
    names = sorted(os.fsencode(f"entry number {number}") for number in range(20_000))
    for name in names:
        os.close(os.open(os.fsencode(work) + b"/" + name, os.O_CREAT))
    assert [entry.path for entry in connection.list(".", window=4000)] == names


def test_a_window_too_small_for_an_entry_is_refused(connection: Connection, work: Path) -> None:
    (work / "file").touch()
    assert code_of(lambda: connection.list(".", window=50)) == "INVALID_ARGUMENT"


def test_a_list_goes_on_after_any_path(connection: Connection, work: Path) -> None:
    for name in ("a", "a/x", "a/x/deep", "a-b", "b", "b/z", "c", "é/\u20ac", "z"):
        (work / name).mkdir(parents=True)
        (work / name / "file").touch()
    os.mkdir(os.fsencode(work) + b"/\xff")
    for depth in (1, 2, 4):
        paths = [entry.path for entry in connection.list(".", depth=depth)]
        order = sorted(paths, key=lambda path: path.split(b"/"))
        assert paths == order
        for after in (*paths, b"0", b"a/nothing", b"a/x/deep/file/more", b"b/zz/file", b"b/zzz", b"a/", b"//", b"zz"):
            names = after.rstrip(b"/").split(b"/")
            assert [entry.path for entry in connection.list(".", depth=depth, after=after)] == [
                path for path in order if path.split(b"/") > names
            ], (depth, after)
    assert code_of(lambda: connection.list(".", after=b"a\0b")) == "INVALID_ARGUMENT"


def test_odd_names_are_only_bytes(connection: Connection, work: Path) -> None:
    names = sorted([b"new\nline", b"\xff\xfe not utf-8", b" ", b"-rf", b"*", "ünïcödé".encode(), b"x" * 255])
    for name in names:
        connection.write(name, name)
        assert connection.read(name)[1] == name
    assert [entry.path for entry in connection.list(".")] == names
    for name in names:
        connection.ask(wire.Remove(path=name), wire.Count)
    assert os.listdir(work) == []


def test_remove_takes_files_links_and_empty_directories(connection: Connection, work: Path) -> None:
    connection.write("dir/file", b"", flags=PARENTS)
    (work / "link").symlink_to("dir")
    assert code_of(lambda: connection.ask(wire.Remove(path=b"dir"), wire.Count)) == "NOT_EMPTY"
    assert connection.ask(wire.Remove(path=b"link", flags=1), wire.Count).count == 1
    assert (work / "dir/file").exists()
    assert connection.ask(wire.Remove(path=b"dir/file"), wire.Count).count == 1
    assert connection.ask(wire.Remove(path=b"dir/"), wire.Count).count == 1
    for path in (b"/", b"//", b"/.", b"/tmp/..", b"."):
        assert (
            code_of(lambda path=path: connection.ask(wire.Remove(path=path, flags=1), wire.Count)) == "INVALID_ARGUMENT"
        )  # type: ignore[misc]


def test_recursive_remove_follows_no_link_and_counts(connection: Connection, work: Path) -> None:
    outside = work / "outside"
    connection.write("outside/precious", b"", flags=PARENTS)
    for number in range(30):
        connection.write(f"tree/d{number % 5}/e/f{number}", b"", flags=PARENTS)
    (work / "tree/d0/link").symlink_to(outside)
    count = connection.ask(wire.Remove(path=b"tree", flags=1), wire.Count).count
    assert count == 30 + 1 + 1 + 5 + 5
    assert (outside / "precious").exists()
    assert not (work / "tree").exists()


def test_a_tree_10_thousand_deep_is_removed(connection: Connection, work: Path) -> None:
    here = os.open(work, os.O_RDONLY)
    top = here
    for _ in range(10_000):
        os.mkdir("d", dir_fd=here)
        os.chown("d", 1000, 1000, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        if here != top:
            os.close(here)
        here = below
    os.close(here)
    os.close(top)
    assert connection.ask(wire.Remove(path=b"d", flags=1), wire.Count).count == 10_000
    assert os.listdir(work) == []


def test_a_remove_that_is_refused_says_so(connection: Connection, work: Path) -> None:
    connection.write("tree/a/file", b"", flags=PARENTS)
    (work / "tree/closed").mkdir(mode=0o755)
    (work / "tree/closed/theirs").touch()
    assert code_of(lambda: connection.ask(wire.Remove(path=b"tree", flags=1), wire.Count)) == "PERMISSION_DENIED"
    assert (work / "tree/closed/theirs").exists()


def test_a_killed_worker_fails_its_streams_and_is_replaced(agent: Agent, connection: Connection, work: Path) -> None:
    stream = connection.open(wire.Write(path=b"file"))
    connection.data(stream, b"half")
    wait_until(lambda: len(temps(work)) == 1)
    assert len(agent.children()) == 2
    for pid in agent.children():
        os.kill(pid, signal.SIGKILL)
    assert code_of(lambda: connection.reply(stream, INFO)) == "IO_ERROR"
    for _ in range(3):
        connection.write("file", b"whole")
    assert (work / "file").read_bytes() == b"whole"


def test_a_worker_that_hangs_stalls_neither_commands_nor_the_agents_memory(
    agent: Agent, connection: Connection
) -> None:
    connection.stat("/")
    pids = agent.children()
    for pid in pids:
        trace(pid)
    other = agent.connect()
    other.socket.settimeout(0.5)
    before = agent.rss_kb()
    try:
        for _ in range(200):
            stream = other.open(wire.Write(path=b"f"))
            other.data(stream, b"x" * wire.INPUT_WINDOW)
    except TimeoutError:
        pass
    else:
        pytest.fail("the agent took 50 MB for a worker that does not read")
    assert agent.rss_kb() - before < 12_000
    assert connection.sh("echo fine").stdout == b"fine\n"
    for pid in pids:
        let_go(pid)
    assert connection.stat("/").type_name == "dir"


def test_one_upload_at_a_time_has_a_large_window(connection: Connection) -> None:
    large, other = (connection.open(wire.Write(path=name)) for name in (b"large", b"other"))
    piece = bytes(131_072)  # the agent passes on no more at once
    connection.data(large, piece)
    assert connection.take_credit(large) == len(piece) + (1 << 20) - wire.INPUT_WINDOW
    connection.data(other, piece)
    assert connection.take_credit(other) == len(piece)
    connection.send(large, Type.CLOSE)
    connection.send(other, Type.CLOSE)
    third = connection.open(wire.Write(path=b"third"))
    connection.data(third, b"x")
    assert connection.take_credit(third) == 1 + (1 << 20) - wire.INPUT_WINDOW
    connection.data(third, b"", offset=1, end=True)
    assert connection.reply(third, INFO).size == 1


def test_the_user_can_neither_signal_nor_read_the_workers(agent: Agent, connection: Connection) -> None:
    for pid in agent.children():
        result = connection.sh(f"kill -9 {pid}; cat /proc/{pid}/environ")
        assert result.exit.exit_code != 0
        assert result.stdout == b""
    connection.stat("/")


def test_a_worker_of_the_user_has_no_capability(agent: Agent, connection: Connection) -> None:
    connection.stat("/")  # a worker that has answered has given up what it should not have
    users = [status(pid) for pid in agent.children() if status(pid)["Uid"].split()[3] == "1000"]
    assert [int(user["CapEff"], 16) | int(user["CapPrm"], 16) for user in users] == [0]


def test_the_stat_of_a_vanished_workdir_is_an_error(connection: Connection, work: Path) -> None:
    work.rmdir()
    assert code_of(lambda: connection.stat(".")) == "FILE_NOT_FOUND"
    with pytest.raises(AgentError) as caught:
        connection.run("/bin/true")
    assert caught.value.errno == errno.ENOENT
    work.mkdir()
    assert connection.stat(".").type_name == "dir"


def test_a_list_goes_on_however_large_its_window_is(connection: Connection, work: Path) -> None:
    for number in range(6000):
        (work / f"{'x' * 100}{number}").touch()
    assert len(connection.list(".")) == 6000
