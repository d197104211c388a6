"""Marks of overlayfs survive as those of OCI layers, and a real overlay shows the same afterwards."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from skerry.archive import open_archive
from skerry.core.errors import Unsupported
from skerry.trees.hash import tree_hash
from tests.archive.trees import everything, fresh, pack, unpack, whiteout


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        return {member.name: member for member in archive}


def test_whiteouts_and_opaque_directories_are_those_of_oci(tmp_path: Path) -> None:
    found = members(pack(everything(tmp_path / "in")))
    assert found["layers/0/.wh.gone"].isreg() and found["layers/0/.wh.gone"].size == 0
    assert "layers/0/gone" not in found
    assert found["layers/0/home"].isdir()
    assert not any("trusted" in key for member in found.values() for key in member.pax_headers)
    assert next(iter(found)) == "manifest.json" and list(found)[-1] == "totals.json"


def test_a_users_file_with_the_name_of_a_mark_stays_a_file(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    (tree / ".wh.x").write_bytes(b"mine")
    whiteout(tree / "x")
    whiteout(tree / ".wh.y")
    (tree / ".wh..wh..opq").write_bytes(b"mine too")
    os.setxattr(tree, "trusted.overlay.opaque", b"y")
    whiteout(tree / ("n" * 255))
    unpack(pack(tree), fresh(tmp_path / "out"))
    out = tmp_path / "out"
    assert tree_hash(out) == tree_hash(tree)
    assert (out / ".wh.x").read_bytes() == b"mine" and (out / "x").is_char_device()
    assert (out / ".wh.y").is_char_device() and os.getxattr(out, "trusted.overlay.opaque") == b"y"


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("name", [".wh..opq", ".wh.", ".wh..wh..opq", ".wh..wh.", ".wh..wh..wh..opq", ".wh.x", ".opq"])
def test_a_deleted_name_like_a_mark_hides_that_name_alone(tmp_path: Path, name: str, opaque: bool) -> None:
    """Of `.wh..opq` the mark is the very name by which OCI hides a whole directory."""
    tree, out = fresh(tmp_path / "in"), fresh(tmp_path / "out")
    for directory in (fresh(tree / "dir"), tree):
        whiteout(directory / name)
        (directory / "kept").write_bytes(b"kept")
        if opaque:
            os.setxattr(directory, "trusted.overlay.opaque", b"y")
    data = pack(tree)
    unpack(data, out)
    for directory in (out, out / "dir"):
        assert (directory / name).is_char_device()
        assert ("trusted.overlay.opaque" in os.listxattr(directory)) is opaque
    assert tree_hash(out) == tree_hash(tree)
    with open_archive(io.BytesIO(data)) as archive:
        assert archive.verify().whiteouts == (4 if opaque else 2)


@pytest.mark.parametrize("name", ["redirect", "metacopy", "whiteout", "overlay.opaque", "something.new"])
def test_what_an_archive_cannot_carry_is_refused(tmp_path: Path, name: str) -> None:
    tree = fresh(tmp_path / "in")
    (tree / "file").touch()
    os.setxattr(tree / "file", f"trusted.overlay.{name}", b"x")
    with pytest.raises(Unsupported, match=f"'file' has the attribute trusted.overlay.{name}"):
        pack(tree)


OVERLAY = """
import io, os, shutil, subprocess, sys
from pathlib import Path
from skerry.archive import open_archive, write_archive
from skerry.trees.hash import tree_hash
base = Path(sys.argv[1])
# The whole test is on a tmpfs of this mount namespace, since no overlay may lie on an overlay.
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", base], check=True)
for name in ("lower", "upper", "work", "merged", "upper2", "work2"):
    (base / name).mkdir()
(base / "lower/dir").mkdir()
for name in ("kept", "removed", "changed", "dir/old", "replaced"):
    (base / "lower" / name).write_text(name)
def mount(upper, work):
    options = f"lowerdir={base}/lower,upperdir={base}/{upper},workdir={base}/{work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, base / "merged"], check=True)
def umount():
    subprocess.run(["umount", base / "merged"], check=True)
mount("upper", "work")
m = base / "merged"
(m / "removed").unlink()
(m / "changed").write_text("changed now")
shutil.rmtree(m / "dir")
(m / "dir").mkdir()
(m / "dir/new").write_text("new")
(m / "replaced").unlink()
(m / "replaced").mkdir()
before = tree_hash(m)
umount()
data = io.BytesIO()
info = write_archive(data, {}, [base / "upper"])
assert info.whiteouts >= 2, info
with open_archive(io.BytesIO(data.getvalue())) as archive:
    archive.unpack([base / "upper2"])
assert tree_hash(base / "upper") == tree_hash(base / "upper2")
mount("upper2", "work2")
assert tree_hash(m) == before
assert sorted(os.listdir(m)) == ["changed", "dir", "kept", "replaced"] and os.listdir(m / "dir") == ["new"]
umount()
print("the same")
"""


def test_an_overlay_shows_the_same_on_the_unpacked_layer(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", OVERLAY, tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("the same\n", "")
