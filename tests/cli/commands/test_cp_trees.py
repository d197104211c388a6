"""cp of directories: where they go, what stays, what is left out."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Skerry


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with a bit of everything."""
    root = tmp_path / "project"
    (root / "src/deep").mkdir(parents=True)
    (root / "src/deep/a.py").write_text("a")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/deep/a.py")
    (root / "dangling").symlink_to("nowhere")
    (root / "empty").mkdir()
    (root / ".git").mkdir()
    (root / ".git/config").write_text("secret")
    return root


ALL = [".git", ".git/config", "dangling", "empty", "link", "run.sh", "src", "src/deep", "src/deep/a.py"]


def remote(skerry: Skerry, box: str, path: str) -> list[str]:
    """What is below a directory of a sandbox."""
    found = skerry("exec", box, "--", "sh", "-c", f"cd {path} && find . -mindepth 1 | sed 's,^./,,'").text
    return sorted(found.split())


def local(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_a_directory_goes_in_and_comes_out_as_it_was(skerry: Skerry, box: str, tree: Path, tmp_path: Path) -> None:
    assert skerry("cp", str(tree), f"{box}:copy").code == 0
    assert remote(skerry, box, "copy") == ALL
    back = tmp_path / "back"
    done = skerry("cp", f"{box}:copy", str(back))
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert local(back) == ALL
    assert os.readlink(back / "dangling") == "nowhere"
    assert (back / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (back / "src/deep/a.py").read_text() == "a"


def test_an_existing_directory_takes_the_source_in_and_is_never_replaced_silently(
    skerry: Skerry, box: str, tree: Path, tmp_path: Path
) -> None:
    skerry("exec", box, "--", "sh", "-c", "mkdir dst; touch dst/mine")
    assert skerry("cp", str(tree), f"{box}:dst").code == 0
    assert skerry("ls", f"{box}:dst").text.split() == ["mine", "project"]
    again = skerry("cp", str(tree), f"{box}:dst", "-o", "json")
    assert (again.code, again.error["code"]) == (1, "ALREADY_EXISTS")
    assert "--merge" in again.error["hint"] and "--replace" in again.error["hint"]
    out = tmp_path / "out"
    out.mkdir()
    assert skerry("cp", f"{box}:dst/project", str(out)).code == 0
    assert local(out / "project") == ALL
    assert skerry("cp", f"{box}:dst/project", str(out)).code == 1


def test_merge_adds_and_replace_makes_equal(skerry: Skerry, box: str, tree: Path, tmp_path: Path) -> None:
    skerry("exec", box, "--", "sh", "-c", "mkdir -p dst/src; echo old > dst/run.sh; touch dst/mine dst/src/mine")
    assert skerry("cp", "--merge", str(tree), f"{box}:dst").code == 0
    assert remote(skerry, box, "dst") == sorted([*ALL, "mine", "src/mine"])
    assert skerry("cat", f"{box}:dst/run.sh").out == b"#!/bin/sh\n"
    assert skerry("cp", "--replace", str(tree), f"{box}:dst").code == 0
    assert remote(skerry, box, "dst") == ALL
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine").touch()
    assert skerry("cp", "--merge", f"{box}:dst", str(here)).code == 0
    assert local(here) == sorted([*ALL, "mine"])
    assert skerry("cp", "--replace", f"{box}:dst", str(here)).code == 0
    assert local(here) == ALL


def test_a_slash_and_a_dot_say_into_and_what_is_in_it(skerry: Skerry, box: str, tree: Path) -> None:
    assert skerry("cp", str(tree), f"{box}:new/").code == 0
    assert skerry("ls", f"{box}:new").text == "project\n"
    skerry("exec", box, "--", "sh", "-c", "mkdir dst; touch dst/mine")
    assert skerry("cp", f"{tree}/.", f"{box}:dst").code == 0
    assert remote(skerry, box, "dst") == sorted([*ALL, "mine"])
    assert skerry("cp", f"{tree}/.", f"{box}:.").code == 0
    assert skerry("cp", "--replace", f"{tree}/.", f"{box}:dst").code == 0
    assert remote(skerry, box, "dst") == ALL


def test_excluded_names_stay_behind_both_ways(skerry: Skerry, box: str, tree: Path, tmp_path: Path) -> None:
    done = skerry("cp", "--exclude", ".git", "--exclude", "deep", str(tree), f"{box}:copy")
    assert done.code == 0, done.err
    kept = ["dangling", "empty", "link", "run.sh", "src"]
    assert remote(skerry, box, "copy") == kept
    assert skerry("cp", "--exclude", "empty", f"{box}:copy", str(tmp_path / "back")).code == 0
    assert local(tmp_path / "back") == [name for name in kept if name != "empty"]


def test_what_is_no_file_is_left_out_and_named(skerry: Skerry, box: str, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tree / "sock"))
        done = skerry("cp", str(tree), f"{box}:copy")
        data = skerry("cp", "--replace", str(tree), f"{box}:copy", "-o", "json").json
    assert done.code == 0
    assert sorted(done.err.splitlines()) == ["left out: pipe (fifo)", "left out: sock (socket)"]
    assert sorted((each["path"], each["reason"]) for each in data[0]["skipped"]) == [
        ("pipe", "fifo"),
        ("sock", "socket"),
    ]
    assert (data[0]["files"], data[0]["links"]) == (3, 2)


def test_directories_are_copied_within_and_between_sandboxes(skerry: Skerry, box: str, other: str, tree: Path) -> None:
    skerry("cp", str(tree), f"{box}:one")
    assert skerry("cp", f"{box}:one", f"{box}:two").code == 0
    assert remote(skerry, box, "two") == ALL
    assert skerry("cp", f"{box}:one", f"{box}:two").code == 0
    assert remote(skerry, box, "two/one") == ALL
    assert skerry("cp", "--replace", "--exclude", ".git", f"{box}:one", f"{box}:two").code == 0
    assert remote(skerry, box, "two") == [name for name in ALL if ".git" not in name]
    assert skerry("cp", f"{box}:one", f"{other}:three").code == 0
    assert remote(skerry, other, "three") == ALL


def test_a_directory_never_takes_the_place_of_a_file(skerry: Skerry, box: str, tree: Path, tmp_path: Path) -> None:
    skerry("exec", box, "--", "touch", "file")
    for option in ((), ("--merge",), ("--replace",)):
        done = skerry("cp", *option, str(tree), f"{box}:file", "-o", "json")
        assert (done.code, done.error["code"]) == (1, "NOT_A_DIRECTORY")
    (tmp_path / "file").touch()
    done = skerry("cp", f"{box}:/workspace", str(tmp_path / "file"), "-o", "json")
    assert (done.code, done.error["code"]) == (1, "NOT_A_DIRECTORY")


def test_resume_is_for_single_files(skerry: Skerry, box: str, tree: Path) -> None:
    done = skerry("cp", "--resume", str(tree), f"{box}:copy", "-o", "json")
    assert (done.code, done.error["code"]) == (1, "INVALID_ARGUMENT")
    assert skerry("cp", "--resume", str(tree / "run.sh"), f"{box}:run.sh").code == 0
    assert skerry("cat", f"{box}:run.sh").out == b"#!/bin/sh\n"
