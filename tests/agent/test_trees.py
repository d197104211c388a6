"""Trees: packed, unpacked, copied and hashed; complete or not there at all, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.conftest import build
from tests.agent.driver.client import Agent, AgentError, Connection, wait_until
from tests.agent.driver.trees import (
    MERGE,
    NEW,
    PARENTS,
    content,
    entry,
    file,
    file_end,
    look,
    pack,
    record,
    root,
    tree_end,
    tree_hash,
    unpack,
)

TOTALS, NO_CONTENT = 1, 2


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(AgentError) as caught:
        action()
    return caught.value.code


def refusal(connection: Connection, path: str, data: bytes, flags: int = 0) -> str:
    return code_of(lambda: unpack(connection, path, data, flags=flags))


def temps(top: Path) -> list[str]:
    return [name for _, directories, files in os.walk(top) for name in directories + files if ".skerry-" in name]


def own(top: Path) -> None:
    for directory, directories, files in os.walk(top):
        for name in [".", *directories, *files]:
            os.chown(os.path.join(directory, name), 1000, 1000, follow_symlinks=False)


@pytest.fixture
def tree(work: Path) -> Path:
    top = work / "tree"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/deep").write_bytes(b"deep")
    (top / "a.txt").write_bytes(os.urandom(300_000))
    (top / "empty").write_bytes(b"")
    (top / "script").write_bytes(b"#!/bin/sh\n")
    (top / "script").chmod(0o755)
    (top / "setgid").write_bytes(b"s")
    os.symlink("nowhere", top / "dangling")
    os.symlink("/etc", top / "a/etc")
    os.link(top / "script", top / "zz-same")
    Path(os.fsdecode(os.fsencode(top) + b"/\xff\xfe name\n")).write_bytes(b"odd")
    own(top)
    (top / "setgid").chmod(0o2750)
    (top / "a/b").chmod(0o555)
    for name in ("a/b", "a", "script"):
        os.utime(top / name, ns=(0, 1_234_567_890_123_456_789))
    os.utime(top / "dangling", ns=(0, 987_654_321_000_000_001), follow_symlinks=False)
    os.utime(top, ns=(0, -1_500_000_000))
    return top


def test_a_tree_comes_back_as_it_was(connection: Connection, work: Path, tree: Path) -> None:
    packed = pack(connection, "tree")
    info = unpack(connection, "again", packed.stream())
    assert look(work / "again") == look(tree)
    assert (info.files, info.directories, info.links) == (7, 3, 2)
    assert (packed.last.files, packed.last.directories, packed.last.links) == (7, 3, 2)
    assert info.content_bytes == packed.last.content_bytes
    assert os.stat(work / "again/zz-same").st_ino == os.stat(work / "again/script").st_ino
    assert os.stat(work / "again/a.txt").st_uid == 1000
    assert temps(work) == []


def test_the_longest_path_is_kept(connection: Connection, work: Path) -> None:
    names = [b"d" * 255] * 32
    paths = [b"/".join(names[: depth + 1]) for depth in range(32)]
    assert len(paths[-1]) == 8191
    unpack(connection, "again", root(*(entry(path, "dir") for path in paths)))
    depth, at = 0, os.open(work / "again", os.O_RDONLY)
    while found := os.listdir(at):
        inner = os.open(found[0], os.O_RDONLY, dir_fd=at)
        os.close(at)
        depth, at = depth + 1, inner
    os.close(at)
    assert depth == 32
    assert os.listdir(work) == ["again"]


def test_records_may_be_split_anywhere(connection: Connection, work: Path, tree: Path) -> None:
    (tree / "a.txt").write_bytes(os.urandom(5000))
    data = pack(connection, "tree").stream()
    for size in (1, 7):
        unpack(connection, f"by{size}", data, pieces=[data[i : i + size] for i in range(0, len(data), size)])
        assert look(work / f"by{size}") == look(tree)


def test_a_narrow_window_is_kept_to(connection: Connection, tree: Path) -> None:
    assert pack(connection, "tree", window=1000).stream() == pack(connection, "tree").stream()


def test_holes_stay_holes(connection: Connection, work: Path) -> None:
    with (work / "sparse").open("wb") as out:
        out.seek(50_000_000)
        out.write(b"x" * 4096)
        out.truncate(200_000_000)
    packed = pack(connection, "sparse")
    assert packed.last.content_bytes <= 1_000_000
    assert packed.pieces(b"")[1] == 200_000_000
    unpack(connection, "again", packed.stream())
    assert subprocess.run(["cmp", work / "sparse", work / "again"]).returncode == 0
    assert os.stat(work / "again").st_blocks * 512 < 2_000_000


def test_user_attributes_are_kept(connection: Connection, work: Path, tree: Path) -> None:
    try:
        os.setxattr(tree / "script", "user.one", b"1\x00\xff")
        os.setxattr(tree / "a", "user.two", b"")
    except OSError:
        pytest.skip("this file system has no user attributes")
    info = unpack(connection, "again", pack(connection, "tree").stream())
    assert os.getxattr(work / "again/script", "user.one") == b"1\x00\xff"
    assert os.getxattr(work / "again/a", "user.two") == b""
    assert info.xattrs_lost == 0


def test_attributes_that_change_while_they_are_read_are_the_old_or_the_new_ones(
    connection: Connection, work: Path
) -> None:
    (work / "file").touch()
    try:
        os.setxattr(work / "file", "user.a", b"x" * 3000)
    except OSError:
        pytest.skip("this file system has no user attributes")
    change = (
        "import os, sys\n"
        "while True:\n"
        "    os.setxattr(sys.argv[1], 'user.a', b'')\n"
        "    os.setxattr(sys.argv[1], 'user.a', b'x' * 3000)\n"
    )
    # One that looks at the size and then reads finds another value in between every few dozen times.
    with subprocess.Popen([sys.executable, "-c", change, str(work / "file")]) as changing:
        try:
            for _ in range(250):
                for value in pack(connection, "file").entries[b""].xattr:
                    assert value in (b"user.a\0", b"user.a\0" + b"x" * 3000)
        finally:
            changing.kill()


def test_what_cannot_be_sent_is_named(connection: Connection, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
        packed = pack(connection, "tree", exclude=(b"a", b"nothing"), max_size=1000)
    assert packed.skipped == {b"pipe": "fifo", b"socket": "socket", b"a": "excluded", b"a.txt": "too large"}
    assert not any(path.startswith(b"a/") for path in packed.entries)


def test_totals_come_first(connection: Connection, tree: Path) -> None:
    packed = pack(connection, "tree", flags=TOTALS)
    assert packed.first.total_entries == len(packed.entries)
    assert packed.first.total_bytes == 300_000 + 4 + 10 + 1 + 3
    assert pack(connection, "tree").first.total_entries is None


def test_entries_without_content(connection: Connection, tree: Path) -> None:
    packed = pack(connection, "tree", flags=NO_CONTENT)
    assert packed.pieces(b"a.txt") == ({}, 300_000)
    assert packed.last.content_bytes == 0


def test_a_file_that_shrinks_has_the_size_that_was_sent(connection: Connection, work: Path) -> None:
    (work / "big").write_bytes(b"x" * 3_000_000)
    stream = connection.open(wire.Pack(path=b"big", window=1000))
    connection.reply(stream, wire.TreeInfo, final=False)
    connection.next(stream)
    os.truncate(work / "big", 400_000)
    connection.credit(stream, 0, 1 << 30)
    data = b""
    while (frame := connection.next(stream)).type == Type.DATA:
        data += wire.parse_data(frame.payload)[1]
    assert frame.type == Type.REPLY
    sent = wire.TreeInfo.decode(frame.payload).content_bytes
    assert sent < 3_000_000
    assert file_end(sent) in data


def test_no_right_to_read_ends_the_stream(connection: Connection, tree: Path) -> None:
    os.chown(tree / "empty", 0, 0)
    (tree / "empty").chmod(0o600)
    assert code_of(lambda: pack(connection, "tree")) == "PERMISSION_DENIED"
    assert code_of(lambda: pack(connection, "missing")) == "FILE_NOT_FOUND"
    assert code_of(lambda: pack(connection, "/dev/null")) == "NOT_A_FILE"


def test_a_directory_is_replaced_as_a_whole(connection: Connection, work: Path, tree: Path) -> None:
    unpack(connection, "tree", root(file(b"only", b"this"), size=4, mode=0o500))
    assert sorted(os.listdir(tree)) == ["only"]
    unpack(connection, "tree", root(file(b"then", b"that"), size=4, mode=0o700))
    assert sorted(os.listdir(tree)) == ["then"]
    wait_until(lambda: temps(work) == [])


def test_a_directory_whose_parent_is_closed_is_exchanged_inside(connection: Connection, work: Path) -> None:
    (work / "old").write_bytes(b"old")
    (work / "sub/locked").mkdir(parents=True)
    own(work)
    (work / "sub/locked").chmod(0o500)
    (work / "sub").chmod(0o500)
    unpack(connection, ".", root(entry(b"new", "dir", mode=0o500), file(b"new/x", b"y"), size=1))
    assert look(work)["new/x"][2] == b"y"
    assert sorted(os.listdir(work)) == ["new"]
    assert stat.S_IMODE(os.stat(work / "new").st_mode) == 0o500


def test_a_merge_keeps_what_is_there(connection: Connection, work: Path, tree: Path) -> None:
    before = look(tree)
    info = unpack(
        connection,
        "tree",
        root(
            entry(b"a", "dir"),
            file(b"a/new", b"n"),
            file(b"script", b"other"),
            entry(b"l", "link", target=b"x"),
            size=6,
        ),
        flags=MERGE,
    )
    after = look(tree)
    assert (after["a/new"][2], after["script"][2], after["l"][2]) == (b"n", b"other", "x")
    assert after["zz-same"][2] == b"#!/bin/sh\n"
    assert {path for path in before if path not in after} == set()
    assert (info.files, info.directories, info.links) == (2, 2, 1)
    assert temps(work) == []


def test_hard_links_survive_a_merge_onto_themselves(connection: Connection, work: Path, tree: Path) -> None:
    (tree / "a/b").chmod(0o755)
    data = pack(connection, "tree").stream()
    for _ in range(2):
        unpack(connection, "merged", data, flags=MERGE)
        assert os.stat(work / "merged/zz-same").st_ino == os.stat(work / "merged/script").st_ino
    assert temps(work) == []


def test_the_wrong_kind_of_target_is_refused(connection: Connection, work: Path, tree: Path) -> None:
    one = file(b"", b"f") + tree_end(1, 1)
    os.symlink("tree", work / "link")
    before = look(tree)
    for flags in (0, MERGE):
        assert refusal(connection, "tree", one, flags=flags) == "IS_A_DIRECTORY"
        assert refusal(connection, "tree/script", root(), flags=flags) == "NOT_A_DIRECTORY"
        assert refusal(connection, "link", root(), flags=flags) == "NOT_A_DIRECTORY"
        assert refusal(connection, "no/such/place", root(), flags=flags) == "FILE_NOT_FOUND"
        assert refusal(connection, "tree", root(), flags=flags | NEW) == "ALREADY_EXISTS"
    into_link = root(entry(b"etc", "dir"), file(b"etc/x"))
    assert refusal(connection, "tree/a", into_link, flags=MERGE) == "NOT_A_DIRECTORY"
    file_over_dir = root(file(b"a", b"1"), size=1)
    assert refusal(connection, "tree", file_over_dir, flags=MERGE) == "IS_A_DIRECTORY"
    assert unpack(connection, "no/such/place", root(), flags=PARENTS).directories == 1
    assert {path: what for path, (_, _, what) in look(tree).items()} == {
        path: what for path, (_, _, what) in before.items()
    }
    assert temps(work) == []


X = entry(b"x", "dir")
HOSTILE = {
    "climbs": root(file(b"../x")),
    "absolute": root(file(b"/x")),
    "empty part": root(X, file(b"x//y")),
    "dot": root(X, file(b"x/./y")),
    "nul": root(file(b"x\0y")),
    "trailing slash": root(entry(b"x/", "dir")),
    "below a link": root(entry(b"x", "link", target=b"/tmp"), file(b"x/y")),
    "below nothing": root(file(b"x/y")),
    "below a file": root(file(b"x"), file(b"x/y")),
    "back into a finished directory": root(X, file(b"z"), file(b"x/y")),
    "twice": root(file(b"x"), file(b"x")),
    "a second root": root(entry(b"", "dir")),
    "no root": file(b"x") + tree_end(1, 0),
    "root is a link": entry(b"", "link", target=b"/etc") + tree_end(1, 0),
    "same as nothing": root(entry(b"x", same_as=b"y")),
    "same as what is outside": root(entry(b"x", same_as=b"../file")),
    "same as through a link": root(entry(b"l", "link", target=b".."), entry(b"x", same_as=b"l/file")),
    "same as a link": root(entry(b"l", "link", target=b"../file"), entry(b"x", same_as=b"l")),
    "an unknown type": root(entry(b"x", "fifo")),
    "a mode too large": root(entry(b"x", "dir", mode=0o10000)),
    "content of nothing": entry(b"", "dir") + content(b"x") + tree_end(1, 1),
    "content backwards": entry(b"") + content(b"xy", 10) + content(b"z", 5) + file_end(20) + tree_end(1, 3),
    "content beyond all": entry(b"") + content(b"xy", 2**63 - 1) + file_end(20) + tree_end(1, 2),
    "an end before its content": entry(b"") + content(b"xy") + file_end(1) + tree_end(1, 2),
    "an entry within a file": entry(b"", "dir") + entry(b"x") + entry(b"y", "dir") + tree_end(3, 0),
    "no end of the file": entry(b"", "dir") + entry(b"x") + tree_end(2, 0),
    "a wrong count": entry(b"", "dir") + tree_end(2, 0),
    "no end": entry(b"", "dir") + file(b"x", b"1"),
    "half a record": entry(b"", "dir") + file(b"x", b"1")[:-3],
    "something after the end": root() + file(b"x"),
    "an unknown record": root()[:-30] + record(9, b"") + tree_end(1, 0),
    "a giant record": entry(b"", "dir") + b"\x01\xff\xff\xff\xff",
    "a giant content": entry(b"") + b"\x02\x09\x00\x02\x00" + bytes(131_081),
    "nothing": b"",
}


# In a merge, what comes twice is replaced by the second.
HOSTILE_CASES = [(name, flags) for name in HOSTILE for flags in (0, MERGE) if not (flags and name == "twice")]


@pytest.mark.parametrize(("name", "flags"), HOSTILE_CASES)
def test_a_hostile_stream_is_refused(connection: Connection, work: Path, name: str, flags: int) -> None:
    (work / "file").write_bytes(b"outside")
    os.chown(work / "file", 1000, 1000)
    assert refusal(connection, "target", HOSTILE[name], flags=flags) == "INVALID_ARGUMENT"
    if not flags:
        wait_until(lambda: os.listdir(work) == ["file"])
    assert temps(work) == []
    assert os.stat(work / "file").st_nlink == 1


def test_the_record_parser_survives_fuzzing(tmp_path: Path) -> None:
    for number, data in enumerate(HOSTILE.values()):
        (tmp_path / str(number)).write_bytes(b"\x07" + data)
    seconds = os.environ.get("FUZZ_SECONDS", "3")
    options = [f"-max_total_time={seconds}", "-max_len=4096", f"-artifact_prefix={tmp_path}/"]
    fuzzer = build("fuzz").with_name("fuzz_records")
    done = subprocess.run([fuzzer, *options, tmp_path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_an_abandoned_unpack_leaves_nothing(agent: Agent, work: Path, how: str) -> None:
    connection = agent.connect()
    for flags in (0, MERGE):
        tree = entry(b"", "dir", mode=0o500) + file(b"x", b"1") + entry(b"y") + content(b"z")
        for name, start in {b"tree": tree, b"file": entry(b"") + content(b"z")}.items():
            stream = connection.open(wire.Unpack(path=name, flags=flags))
            connection.data(stream, start)
            wait_until(lambda: temps(work))
            if how == "close":
                connection.send(stream, Type.CLOSE)
            else:
                connection.close()
                connection = agent.connect()
            wait_until(lambda: temps(work) == [])
            if not flags:
                assert os.listdir(work) == []


@pytest.fixture
def small_disk(work: Path) -> Iterator[Path]:
    target = work / "disk"
    target.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs", target])
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield target
    subprocess.run(["umount", "-l", target], check=True)


def test_a_full_disk_is_said_and_leaves_what_was_there(connection: Connection, small_disk: Path) -> None:
    (small_disk / "sub").mkdir(mode=0o777)
    (small_disk / "sub").chmod(0o777)
    (small_disk / "kept").write_bytes(b"kept")
    os.chown(small_disk / "sub", 1000, 1000)
    os.chown(small_disk / "kept", 1000, 1000)
    parts = b"".join(content(bytes(100_000), i * 100_000) for i in range(30))
    big = entry(b"", "dir") + entry(b"x") + parts + file_end(3_000_000) + tree_end(2, 3_000_000)
    for target in ("disk/sub", "disk"):
        assert refusal(connection, target, big) == "DISK_FULL"
        assert sorted(os.listdir(small_disk)) == ["kept", "sub"]
        assert os.listdir(small_disk / "sub") == []


def test_a_mount_point_is_filled_from_inside(connection: Connection, small_disk: Path) -> None:
    (small_disk / "old").write_bytes(b"old")
    os.chown(small_disk / "old", 1000, 1000)
    unpack(connection, "disk", root(file(b"new", b"1"), size=1))
    assert os.listdir(small_disk) == ["new"]


def test_other_requests_are_served_during_a_pack(connection: Connection, work: Path) -> None:
    (work / "big").write_bytes(bytes(20_000_000))
    stream = connection.open(wire.Pack(path=b"big", window=1 << 30))
    assert connection.stat("big").size == 20_000_000
    while connection.next(stream).flags & 0x80 == 0:
        pass


def copy(connection: Connection, path: str, target: str, flags: int = 1) -> wire.TreeInfo:
    return connection.ask(wire.Copy(path=path.encode(), target=target.encode(), flags=flags), wire.TreeInfo)


def test_a_tree_is_copied(connection: Connection, work: Path, tree: Path) -> None:
    info = copy(connection, "tree", "made/here", 1 | PARENTS)
    assert look(work / "made/here") == look(tree)
    assert (info.path, info.files) == (os.fsencode(work / "made/here"), 7)
    assert copy(connection, "tree/a.txt", "one").size == 300_000
    assert copy(connection, "tree/script", "one").size == 10
    assert temps(work) == []


def test_a_copy_that_cannot_be_is_refused(connection: Connection, work: Path, tree: Path) -> None:
    before = look(work)
    assert code_of(lambda: copy(connection, "tree", "other", 0)) == "IS_A_DIRECTORY"
    assert code_of(lambda: copy(connection, "tree", "tree/a/inside")) == "INVALID_ARGUMENT"
    assert code_of(lambda: copy(connection, "tree", "tree/new")) == "INVALID_ARGUMENT"
    assert code_of(lambda: copy(connection, "tree", "tree")) == "ALREADY_EXISTS"
    assert code_of(lambda: copy(connection, "tree/script", "tree")) == "ALREADY_EXISTS"
    assert code_of(lambda: copy(connection, "tree", "tree/script")) in ("NOT_A_DIRECTORY", "INVALID_ARGUMENT")
    assert code_of(lambda: copy(connection, "tree/script", "tree/empty", NEW)) == "ALREADY_EXISTS"
    assert code_of(lambda: copy(connection, "tree/script", "no/where")) == "FILE_NOT_FOUND"
    assert code_of(lambda: copy(connection, "nothing", "x")) == "FILE_NOT_FOUND"
    assert look(work) == before


def test_hashes_are_sha256(connection: Connection, work: Path, tree: Path) -> None:
    for size in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1_000_003):
        data = os.urandom(size)
        (work / "f").write_bytes(data)
        got = connection.ask(wire.Hash(path=b"f"), wire.HashReply)
        assert (got.sha256, got.bytes_hashed, got.entries) == (hashlib.sha256(data).digest(), size, 1)
    start = connection.ask(wire.Hash(path=b"f", length=1000), wire.HashReply)
    assert (start.sha256, start.bytes_hashed) == (hashlib.sha256(data[:1000]).digest(), 1000)
    got = connection.ask(wire.Hash(path=b"tree"), wire.HashReply)
    assert (got.sha256, got.entries) == (tree_hash(tree), 12)
    assert code_of(lambda: connection.ask(wire.Hash(path=b"nothing"), wire.HashReply)) == "FILE_NOT_FOUND"
    assert code_of(lambda: connection.ask(wire.Hash(path=b"tree", length=3), wire.HashReply)) == "IS_A_DIRECTORY"


def test_an_etag_guards_a_write(connection: Connection, work: Path) -> None:
    first = connection.write("f", b"one", if_match="")
    assert connection.stat("f").etag == first.etag != ""
    second = connection.write("f", b"two", if_match=first.etag)
    assert code_of(lambda: connection.write("f", b"three", if_match=first.etag)) == "CONFLICT"
    assert code_of(lambda: connection.write("f", b"three", if_match="")) == "CONFLICT"
    assert (work / "f").read_bytes() == b"two"
    stream = connection.open(wire.Write(path=b"f", if_match=second.etag))
    connection.data(stream, b"three")
    wait_until(lambda: temps(work))
    with (work / "f").open("ab") as out:
        out.write(b"!")
    connection.data(stream, b"", offset=5, end=True)
    assert code_of(lambda: connection.reply(stream, wire.FileInfoMessage)) == "CONFLICT"
    assert (work / "f").read_bytes() == b"two!"
    assert temps(work) == []
