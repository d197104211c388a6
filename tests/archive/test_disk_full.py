"""A full disk in the middle of either way is DiskFull, and nothing is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archive.trees import fresh

FULL = """
import os, subprocess, sys
from pathlib import Path
from skerry.archive import open_archive, write_archive
from skerry.core.errors import DiskFull
base, tree, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
options = "size=1m" if what == "bytes" else "nr_inodes=50"
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", base], check=True)
(base / "out").mkdir()
before = os.statvfs(base)
archive = tree.parent / "archive"
with archive.open("wb") as target:
    write_archive(target, {}, [tree])
with archive.open("rb") as source, open_archive(source) as opened:
    try:
        opened.unpack([base / "out"])
    except DiskFull as error:
        print("unpacking:", error.code)
after = os.statvfs(base)
assert os.listdir(base / "out") == [] and (before.f_bfree, before.f_ffree) == (after.f_bfree, after.f_ffree)
if what == "bytes":
    try:
        with (base / "archive").open("wb", buffering=0) as target:
            write_archive(target, {}, [tree])
    except DiskFull as error:
        print("writing:", error.code)
"""


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path, what: str) -> None:
    tree = fresh(tmp_path / "in")
    for index in range(100):
        (tree / f"f{index}").write_bytes(index.to_bytes(2) * 15_000)
    if what == "bytes":
        (tree / "random").write_bytes(os.urandom(3 << 20))
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            FULL,
            fresh(tmp_path / "disk"),
            tree,
            what,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "unpacking: DISK_FULL\n" + ("writing: DISK_FULL\n" if what == "bytes" else "")
    assert (done.stdout, done.stderr) == (expected, "")
