"""A large tree into a real sandbox and back: every byte the same, by hash, in memory that does not grow with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from skerry import Sandbox
from tests import inventory
from tests.agent.driver.trees import tree_hash

FILES = int(os.environ.get("SKERRY_TEST_FILES", "5000"))
"""`make soak` takes 50,000; the memory must be the same."""
SPARSE = 5_000_000_000
HASHED = SPARSE if "SOAK" in os.environ else 100_000_000
"""The sparse file of `make test` is as large, but hashing its holes takes long: only so much of it is compared."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for number in range(FILES // 100):
        directory = top / str(number % 20) / str(number)
        directory.mkdir(parents=True)
        for name in range(100):
            (directory / str(name)).write_bytes(bytes([number % 256, name]) * (512 + name * 15))
    (top / "link").symlink_to("0/0/0")
    os.link(top / "0/0/1", top / "same")
    return top


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "sparse"
    with path.open("wb") as out:
        for offset in (0, 77_000_000, 3_000_000_000):
            out.seek(offset)
            out.write(os.urandom(1_000_000))
        out.truncate(SPARSE)
    return path


def peak(pid: int | str) -> int:
    """The largest a process has been, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_large_tree_and_a_huge_sparse_file_come_back_the_same(
    tree: Path, sparse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    with Sandbox.create(timeout=1800) as sandbox:
        files = sandbox.files
        files.upload(tree / "0", "warm")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = peak("self")
        started = time.monotonic()
        sent = files.upload(tree, "tree")
        up = time.monotonic() - started
        files.upload(sparse, "sparse")
        started = time.monotonic()
        files.download("tree", out)
        down = time.monotonic() - started
        files.download("sparse", back)
        grown = peak("self") - before
        inside = [peak(pid) for pid in inventory.processes_of(sandbox.id)]
        with capsys.disabled():
            print(
                f"\ntrees: {sent.files} files up in {up:.1f} s, down in {down:.1f} s; a sparse file of 5 GB both ways"
            )
            print(f"trees: client +{grown} kB, processes of the sandbox at most {max(inside)} kB")
        assert files.hash("tree") == tree_hash(tree).hex() == tree_hash(out).hex()
        same_sparse(sandbox, sparse, back)
        assert os.stat(out / "same").st_ino == os.stat(out / "0/0/1").st_ino
        shutil.rmtree(out)
    assert sent.files == FILES + 1
    assert grown < 40_000
    assert max(inside) < 10_000


def same_sparse(sandbox: Sandbox, sent: Path, back: Path) -> None:
    """Equal and as sparse: in the sandbox, and after its way back."""
    blocks = int(sandbox.exec(["stat", "-c", "%b", "sparse"], check=True).stdout) * 512
    assert max(blocks, back.stat().st_blocks * 512) < 16_000_000
    assert back.stat().st_size == sandbox.files.stat("sparse").size == SPARSE
    head = f"head -c {HASHED} {{}} | sha256sum"
    inside = sandbox.exec(head.format("sparse"), check=True, timeout=600).stdout
    for path in (sent, back):
        here = subprocess.run(head.format(path), shell=True, capture_output=True, text=True, check=True)
        assert here.stdout == inside
    with sent.open("rb") as one, back.open("rb") as other:
        for file in (one, other):
            file.seek(2_999_999_000)
        assert one.read(1_002_000) == other.read(1_002_000)
