"""What goes into an archive comes out of it, whatever it is."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.archive import Key, open_archive, write_archive
from skerry.core.errors import Conflict, InvalidArgument, Unsupported
from skerry.trees.hash import tree_hash
from skerry.trees.sparse import find_extents
from tests.archive.trees import add_socket, everything, fresh, is_empty, pack, unpack


@pytest.mark.parametrize("key", [None, Key.generate()], ids=["plain", "encrypted"])
def test_one_of_each_comes_back_as_it_was(tmp_path: Path, key: Key | None) -> None:
    tree = everything(tmp_path / "in")
    totals = unpack(pack(tree, key=key), fresh(tmp_path / "out"), key=key)
    assert tree_hash(tmp_path / "out") == tree_hash(tree)
    assert (totals.files, totals.directories, totals.links, totals.fifos, totals.whiteouts) == (11, 7, 6, 1, 2)
    home = tmp_path / "out/home"
    assert (home / "notes").stat().st_ino == (tmp_path / "out/a second name").stat().st_ino
    assert os.stat(home / "zero").st_mtime_ns == -1_500_000_000
    assert os.stat(tmp_path / "out/bin/su").st_mode & 0o7777 == 0o4755
    assert (home / "sparse").stat().st_blocks * 512 < 1 << 20
    assert (home / "hole").stat().st_blocks == 0


def test_the_tree_hash_sees_each_fact_by_itself(tmp_path: Path) -> None:
    """Without times, since those of directories would give most changes away; and of the times each one."""
    tree = everything(tmp_path / "tree")
    home, su, notes = tree / "home", tree / "bin/su", tree / "home/notes"
    own = (tree / "a second name").read_bytes()
    seen = [tree_hash(tree, times=False)]
    for change in (
        lambda: su.chmod(0o755),
        lambda: os.chown(su, 1, 0),
        lambda: os.chown(su, 1, 1),
        lambda: os.lchown(home / "up", 7, 0),
        lambda: os.setxattr(su, "user.x", b"1"),
        lambda: os.setxattr(su, "user.x", b"2"),
        lambda: os.removexattr(home, "user.on a directory"),
        lambda: os.removexattr(tree / "bin/ping", "security.capability"),
        lambda: os.removexattr(tree / "new", "trusted.overlay.opaque"),
        lambda: os.truncate(home / "hole", 123457),
        lambda: (os.unlink(home / "odd"), os.symlink("x", home / "odd")),
        lambda: (
            os.unlink(tree / "a second name"),
            (tree / "a second name").write_bytes(own),
            shutil.copystat(notes, tree / "a second name"),
            os.chown(tree / "a second name", 1000, 1001),
        ),
        lambda: (os.unlink(home / "zz third"), os.link(tree / "a second name", home / "zz third")),
        lambda: os.rename(
            home / os.fsdecode(b"not \xff utf-8 \xc3\n\\"), home / os.fsdecode(b"not \xfe utf-8 \xc3\n\\")
        ),
        lambda: os.unlink(tree / "gone"),
        lambda: (tree / "gone").touch(0o000),
        lambda: (os.unlink(home / "fifo"), (home / "fifo").touch(), (home / "fifo").chmod(0o620)),
        lambda: (tree / "empty").rmdir(),
    ):
        change()
        seen.append(tree_hash(tree, times=False))
    for path in (su, home, home / "up", home / "odd again", tree):
        seen.append(tree_hash(tree))
        os.utime(path, ns=(0, os.lstat(path).st_mtime_ns + 1), follow_symlinks=False)
    seen.append(tree_hash(tree))
    assert len(set(seen)) == len(seen)


def test_the_tree_hash_notices_every_change(tmp_path: Path) -> None:
    tree = everything(tmp_path / "tree")
    seen = [tree_hash(tree)]
    for change in (
        lambda: (tree / "bin/su").chmod(0o755),
        lambda: os.chown(tree / "bin/su", 1, 0),
        lambda: os.utime(tree / "bin/su", ns=(5, 5)),
        lambda: os.setxattr(tree / "bin/su", "user.x", b"1"),
        lambda: os.removexattr(tree / "new", "trusted.overlay.opaque"),
        lambda: os.unlink(tree / "gone"),
        lambda: os.truncate(tree / "home/hole", 123457),
        lambda: (tree / "home/hole").write_bytes(bytes(123456) + b"1"),
        lambda: (os.unlink(tree / "home/odd"), os.symlink("x", tree / "home/odd")),
        lambda: (os.unlink(tree / "a second name"), shutil.copy2(tree / "home/notes", tree / "a second name")),
        lambda: (tree / "empty").rmdir(),
    ):
        change()
        seen.append(tree_hash(tree))
    assert len(set(seen)) == len(seen)


def test_several_layers_come_back_in_order_with_the_manifest(tmp_path: Path) -> None:
    trees = [everything(tmp_path / "0"), fresh(tmp_path / "1"), everything(tmp_path / "2")]
    target = io.BytesIO()
    about = {"template": "python", "env": {"A": "ö"}, "resources": {"cpus": 1.5, "disk": None}}
    info = write_archive(target, about, [trees[0], str(trees[1]), os.open(trees[2], os.O_RDONLY)], kind="snapshot")
    assert info.bytes_written == len(target.getvalue())
    outs = [fresh(tmp_path / f"out{index}") for index in range(3)]
    with open_archive(io.BytesIO(target.getvalue())) as archive:
        assert (archive.manifest.kind, archive.manifest.layers, archive.manifest.data) == ("snapshot", 3, about)
        totals = archive.unpack(outs)
    assert totals.sha256 == info.sha256
    assert [tree_hash(out) for out in outs] == [tree_hash(tree) for tree in trees]


def test_an_archive_of_no_layer_holds_its_manifest() -> None:
    target = io.BytesIO()
    write_archive(target, {"only": "this"}, [])
    with open_archive(io.BytesIO(target.getvalue())) as archive:
        assert archive.manifest.data == {"only": "this"}
        assert archive.unpack([]).entries == 0


names = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
contents = st.binary(max_size=3000)
trees = st.recursive(
    contents
    | st.just(None)
    | st.binary(min_size=1, max_size=200).filter(lambda to: b"\0" not in to).map(lambda to: (to,)),
    lambda inner: st.dictionaries(names | names.map(lambda name: b".wh." + name), inner, max_size=6),
    max_leaves=20,
)


def build(where: bytes, tree: object) -> None:
    if isinstance(tree, dict):
        os.mkdir(where)
        for name, inner in tree.items():
            build(where + b"/" + name, inner)
    elif isinstance(tree, tuple):
        os.symlink(tree[0], where)
    elif tree is None:
        os.mknod(where, 0o020000, 0)
    elif isinstance(tree, bytes):
        with open(where, "wb") as file:
            file.write(tree)


@given(tree=st.dictionaries(names, trees, max_size=8), mode=st.integers(0, 0o7777), when=st.integers(-(2**33), 2**61))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree_comes_back(tmp_path: Path, tree: dict[bytes, object], mode: int, when: int) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    build(os.fsencode(source), tree)
    source.chmod(mode)
    os.utime(source, ns=(0, when))
    try:
        unpack(pack(source), fresh(out))
        assert tree_hash(out) == tree_hash(source)
    finally:
        shutil.rmtree(source)
        shutil.rmtree(out, ignore_errors=True)


def pieces(path: Path) -> list[tuple[int, int]]:
    with path.open("rb") as file:
        return find_extents(file.fileno(), path.stat().st_size)


MIB = 1 << 20
HOLES = {
    "leading": ([(MIB, 4096)], MIB + 4096),
    "middle": ([(0, 4096), (MIB, 4096)], MIB + 4096),
    "trailing": ([(0, 4096)], MIB),
    "trailing within a block": ([(0, 4096)], MIB + 1),
    "everywhere": ([], MIB),
    "of one byte": ([], 1),
    "several": ([(65536 * n, 4096) for n in range(1, 40, 2)], 4 * MIB),
}


@pytest.mark.parametrize("reserved", [False, True], ids=["", "with blocks after its end"])
@pytest.mark.parametrize(("data", "size"), HOLES.values(), ids=list(HOLES))
def test_holes_are_where_they_were(tmp_path: Path, data: list[tuple[int, int]], size: int, reserved: bool) -> None:
    """As many blocks as bytes, as a file with reserved ones has, do not mean that there are no holes."""
    tree, out = fresh(tmp_path / "in"), fresh(tmp_path / "out")
    with (tree / "disk").open("wb") as file:
        for at, length in data:
            file.seek(at)
            file.write(os.urandom(length))
        file.truncate(size)
    if reserved:
        subprocess.run(["fallocate", "-n", "-o", str(8 * MIB), "-l", str(8 * MIB), tree / "disk"], check=True)
        assert (tree / "disk").stat().st_blocks * 512 > size == (tree / "disk").stat().st_size
    assert pieces(tree / "disk") == data
    unpack(pack(tree), out)
    assert pieces(out / "disk") == data
    assert tree_hash(out) == tree_hash(tree)


def test_holes_of_a_file_of_5_gb_stay_holes(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    with (tree / "disk").open("wb") as file:
        for at in (0, 1 << 30, 3 << 30):
            file.seek(at)
            file.write(os.urandom(10_000))
        file.truncate(5 << 30)
    data = pack(tree)
    assert len(data) < 100_000
    totals = unpack(data, fresh(tmp_path / "out"))
    out = tmp_path / "out/disk"
    assert totals.content_bytes < 100_000
    assert out.stat().st_size == 5 << 30
    assert out.stat().st_blocks * 512 < 1 << 20
    assert tree_hash(tmp_path / "out") == tree_hash(tree)


def test_a_file_with_more_pieces_than_a_map_keeps_loses_only_small_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.trees.sparse.MAX_EXTENTS", 8)
    tree = fresh(tmp_path / "in")
    with (tree / "disk").open("wb") as file:
        for piece in range(40):
            file.seek(piece * 16384)
            file.write(b"data" * 1024)
        file.seek(64 << 20)
        file.write(b"end")
    unpack(pack(tree), fresh(tmp_path / "out"))
    assert tree_hash(tmp_path / "out") == tree_hash(tree)
    assert (tmp_path / "out/disk").stat().st_blocks * 512 < 2 << 20


def test_5000_files_have_several_blocks_of_hashes(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    for index in range(5000):
        if index % 100 == 0:
            (tree / f"d{index // 100}").mkdir()
        (tree / f"d{index // 100}/file {index}").write_bytes(b"%d" % index * 100)
    totals = unpack(pack(tree), fresh(tmp_path / "out"))
    assert (totals.files, totals.directories) == (5000, 51)
    assert tree_hash(tmp_path / "out") == tree_hash(tree)


def test_a_pipe_does_as_well_as_a_file(tmp_path: Path) -> None:
    tree = everything(tmp_path / "in")
    (tree / "big").write_bytes(os.urandom(3 << 20))
    reading, writing = os.pipe()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            with open(writing, "wb", buffering=0) as target:
                write_archive(target, {}, [tree], key=b"k" * 32)
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    with open(reading, "rb", buffering=0) as source, open_archive(source, key=b"k" * 32) as archive:
        archive.unpack([fresh(tmp_path / "out")])
    thread.join(60)
    assert not failed
    assert tree_hash(tmp_path / "out") == tree_hash(tree)


def test_sockets_are_left_out_and_counted(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    add_socket(tree / "socket")
    target = io.BytesIO()
    assert write_archive(target, {}, [tree]).skipped == 1
    assert unpack(target.getvalue(), fresh(tmp_path / "out")).skipped == 1
    assert is_empty(tmp_path / "out")


def test_a_device_is_refused(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    with pytest.raises(Unsupported, match="'null' is a device"):
        pack(tree)


def test_an_owner_no_sandbox_has_is_refused(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    (tree / "file").touch()
    os.chown(tree / "file", 70_000, 0)
    with pytest.raises(Unsupported, match="70000:0"):
        pack(tree)


def test_257_levels_are_refused_and_256_are_not(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    (tree / "/".join(["d"] * 255)).mkdir(parents=True)
    unpack(pack(tree), fresh(tmp_path / "out"))
    assert tree_hash(tmp_path / "out") == tree_hash(tree)
    (tree / "/".join(["d"] * 256)).mkdir()
    with pytest.raises(Unsupported, match="256 levels"):
        pack(tree)


def test_a_file_that_grows_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    (tree / "log").write_bytes(bytes(2 << 20))

    def grow(_: int) -> None:
        with (tree / "log").open("ab") as file:
            file.write(b"more")

    with pytest.raises(Conflict, match="'log' changed"):
        write_archive(io.BytesIO(), {}, [tree], on_progress=grow)


def test_what_on_progress_raises_stops_both_ways_and_leaves_nothing(tmp_path: Path) -> None:
    tree, out = fresh(tmp_path / "in"), fresh(tmp_path / "out")
    (tree / "a").write_bytes(os.urandom(3 << 20))
    descriptors = len(os.listdir("/proc/self/fd"))
    told: list[int] = []

    def stop(done: int) -> None:
        told.append(done)
        if done > 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(io.BytesIO(), {}, [tree], on_progress=stop)
    assert 1 << 20 < told[-1] < 3 << 20
    data = pack(tree)
    with pytest.raises(KeyboardInterrupt), open_archive(io.BytesIO(data)) as archive:
        archive.unpack([out], on_progress=stop)
    assert 1 << 20 < told[-1] < 3 << 20
    assert is_empty(out)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_directories_must_be_empty_and_as_many_as_layers(tmp_path: Path) -> None:
    data = pack(fresh(tmp_path / "in"))
    full = fresh(tmp_path / "full")
    (full / "mine").touch()
    with pytest.raises(InvalidArgument, match="empty directory"):
        unpack(data, full)
    assert (full / "mine").exists()
    with pytest.raises(InvalidArgument, match="1 layers, not 2"):
        unpack(data, fresh(tmp_path / "a"), fresh(tmp_path / "b"))


def test_a_manifest_must_be_json_and_of_some_size(tmp_path: Path) -> None:
    for manifest in ({"x": {1, 2}}, {"x": float("nan")}, {"x": "y" * 2_000_000}):
        with pytest.raises(InvalidArgument, match="manifest"):
            write_archive(io.BytesIO(), manifest, [])  # type: ignore[arg-type]


MEMORY = """
import re, sys
from skerry.archive import open_archive, write_archive
class Nowhere:
    def write(self, data): return len(data)
tree, out, archive = sys.argv[1:]
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
with open(archive, "wb") as target:
    write_archive(target, {}, [tree])
write_peak = peak()
with open(archive, "rb") as source, open_archive(source) as opened:
    opened.unpack([out])
print(write_peak, peak())
"""


def test_memory_does_not_grow_with_the_content(tmp_path: Path) -> None:
    peaks = []
    for size in (16, 256):
        tree, out = fresh(tmp_path / f"in{size}"), fresh(tmp_path / f"out{size}")
        block = os.urandom(1 << 20)
        with (tree / "big").open("wb") as file:
            for _ in range(size):
                file.write(block)
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, tree, out, tmp_path / "archive"], capture_output=True, text=True, check=True
        )
        peaks.append([int(peak) for peak in done.stdout.split()])
        shutil.rmtree(tree)
        shutil.rmtree(out)
    print(f"peak MiB writing and reading: 16 MiB {peaks[0]}, 256 MiB {peaks[1]}")
    assert peaks[1][0] - peaks[0][0] < 60 and peaks[1][1] < 200
