"""The one walk over a host's directory: what comes, what is told as left out, and what is an error."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from skerry.core.errors import Conflict, InvalidArgument, Unsupported
from skerry.trees.pack import Packer, count_tree
from skerry.trees.walk import open_root, walk_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"x" * 1000)
    (root / "a" / "same").hardlink_to(root / "a" / "file")
    (root / "a" / ".git").mkdir()
    (root / "link").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{(fd := os.open(root, os.O_PATH))}/socket")
        os.close(fd)
    return root


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_does_not_come_is_told_with_its_reason(tree: Path) -> None:
    told: dict[bytes, str] = {}
    before = open_files()
    walk = walk_tree(open_root(tree), exclude={".git"}, left_out=told.__setitem__)
    assert [found.path for found in walk] == [b"", b"a", b"a/file", b"a/same", b"link"]
    assert told == {b"a/.git": "excluded", b"pipe": "fifo", b"socket": "socket"}
    assert open_files() == before


def test_without_anyone_to_tell_all_of_it_comes(tree: Path) -> None:
    paths = [found.path for found in walk_tree(open_root(tree))]
    assert paths == [b"", b"a", b"a/.git", b"a/file", b"a/same", b"link", b"pipe", b"socket"]


def test_what_vanishes_is_told_or_is_an_error(tree: Path) -> None:
    for told in ([], None):
        (tree / "a" / "file").touch()
        before = open_files()
        walk = walk_tree(open_root(tree), left_out=None if told is None else lambda *what: told.append(what))  # noqa: B023
        for found in walk:
            if found.path == b"a":
                (tree / "a" / "file").unlink()
                break
        if told is None:
            with pytest.raises(Conflict, match="'a/file' changed"):
                list(walk)
        else:
            list(walk)
            assert (b"a/file", "vanished") in told
        assert open_files() == before


def test_sizes_are_counted_without_opening_files_and_each_file_once(tree: Path) -> None:
    assert count_tree(str(tree), ()) == 1000
    walk = walk_tree(open_root(tree), sizes_only=True)
    assert [found.path for found in walk if found.fd >= 0] == [b"", b"a", b"a/.git"]


def test_a_tree_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    before = open_files()
    (tmp_path / "/".join(["d"] * 256)).mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="256 levels"):
        list(Packer(str(tmp_path), ()).batches())
    with pytest.raises(Unsupported, match="256 levels"):
        list(walk_tree(open_root(tmp_path)))
    assert open_files() == before
