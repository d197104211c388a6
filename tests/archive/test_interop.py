"""GNU tar and zstd read an archive without Skerry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from skerry.trees.hash import tree_hash
from tests.archive.trees import everything, fresh, pack


def test_zstd_and_gnu_tar_give_the_same_tree(tmp_path: Path) -> None:
    tree = everything(tmp_path / "in")
    for path in (tree / "gone", tree / "new/.wh..wh..opq"):
        path.unlink()  # marks mean nothing to tar
    os.removexattr(tree / "new", "trusted.overlay.opaque")
    (tmp_path / "archive").write_bytes(pack(tree))
    out = fresh(tmp_path / "out")
    command = (
        f"set -o pipefail; zstd -dc {tmp_path}/archive |"
        f" tar -C {out} -x --numeric-owner -p --xattrs --xattrs-include='*' --warning=no-unknown-keyword --warning=no-timestamp"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree_hash(out / "layers/0") == tree_hash(tree)
    assert (out / "layers/0/home/sparse").stat().st_blocks * 512 < 1 << 20
    assert (out / "hashes/000000.txt").exists() and (out / "totals.json").exists()


def test_the_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    tree = fresh(tmp_path / "in")
    (tree / "file").write_bytes(b"content")
    (tmp_path / "archive").write_bytes(pack(tree))
    command = f"zstd -dc {tmp_path}/archive | tar -xO hashes/000000.txt"
    lines = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    expected = subprocess.run(["sha256sum", tree / "file"], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    assert [line.split(" ", 2)[2] for line in lines] == ["manifest.json", "layers/0/", "layers/0/file"]
    assert lines[2].split(" ")[0] == expected and lines[1].startswith("- ")


def test_the_list_shows_a_manifest_first_and_the_totals_last(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(pack(everything(tmp_path / "in")))
    command = f"set -o pipefail; zstd -dc {tmp_path}/archive | tar -tv --warning=no-unknown-keyword"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" manifest.json") and lines[-1].endswith(" totals.json") and done.stderr == ""
    assert any(line.startswith("-rwsr-xr-x") and line.endswith("bin/su") for line in lines)
