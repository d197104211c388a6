"""cp: single files into, out of, within and between sandboxes; what goes where; and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Skerry
from tests.cli.pty import Terminal

CONTENT = bytes(range(256)) * 3_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    path.chmod(0o750)
    return path


def names(skerry: Skerry, box: str, path: str = ".") -> list[str]:
    return skerry("ls", box, path).text.split()


def test_a_file_goes_in_and_comes_out_as_it_was(skerry: Skerry, box: str, file: Path, tmp_path: Path) -> None:
    assert skerry("cp", str(file), f"{box}:deep/er/copy").code == 0
    back = tmp_path / "back"
    done = skerry("cp", f"{box}:deep/er/copy", str(back))
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert back.read_bytes() == CONTENT
    assert back.stat().st_mode & 0o777 == 0o750


def test_a_file_goes_into_a_directory_that_is_there_or_is_asked_for(
    skerry: Skerry, box: str, file: Path, tmp_path: Path
) -> None:
    assert skerry("cp", str(file), f"{box}:.").code == 0
    assert skerry("cp", str(file), f"{box}:made/").code == 0
    assert names(skerry, box) == ["data.bin", "made"]
    assert names(skerry, box, "made") == ["data.bin"]
    there = tmp_path / "there"
    there.mkdir()
    assert skerry("cp", f"{box}:made/data.bin", str(there)).code == 0
    assert (there / "data.bin").read_bytes() == CONTENT


def test_several_sources_go_into_a_directory(skerry: Skerry, box: str, tmp_path: Path) -> None:
    sources = [tmp_path / name for name in ("a", "b", "c")]
    for source in sources:
        source.write_text(source.name)
    assert skerry("cp", *map(str, sources), f"{box}:into").code == 0
    assert names(skerry, box, "into") == ["a", "b", "c"]
    (tmp_path / "out").mkdir()
    assert skerry("cp", f"{box}:into/a", f"{box}:into/c", str(tmp_path / "out")).code == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "c"]


def test_stdin_and_stdout_are_a_dash(skerry: Skerry, box: str) -> None:
    assert skerry("cp", "-", f"{box}:piped", stdin=CONTENT).code == 0
    assert skerry("cp", f"{box}:piped", "-").out == CONTENT


def test_files_are_copied_within_and_between_sandboxes(skerry: Skerry, box: str, other: str, file: Path) -> None:
    skerry("cp", str(file), f"{box}:one")
    (within,) = skerry("cp", f"{box}:one", f"{box}:two", "-o", "json").json
    assert (within["target"], within["info"]["size"]) == (f"{box}:two", len(CONTENT))
    assert skerry("cp", f"{box}:two", f"{other}:three").code == 0
    assert skerry("cat", f"{other}:three").out == CONTENT


def test_json_says_what_was_copied_where(skerry: Skerry, box: str, file: Path) -> None:
    (done,) = skerry("cp", str(file), f"{box}:.", "-o", "json").json
    assert (done["source"], done["target"]) == (str(file), f"{box}:./data.bin")
    assert (done["files"], done["directories"], done["links"], done["skipped"]) == (1, 0, 0, [])
    assert (done["bytes"], done["info"]["size"]) == (len(CONTENT), len(CONTENT))


def test_a_local_name_with_a_colon_is_written_with_a_slash(skerry: Skerry, box: str, tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("colon")
    assert skerry("cp", f"{tmp_path}/a:b", f"{box}:.").code == 0
    assert skerry("cat", f"{box}:a:b").out == b"colon"


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("{file}", "{box}:"), "INVALID_ARGUMENT", "{box}:. is its working directory"),
        (("{file}", ":x"), "INVALID_ARGUMENT", "SANDBOX:x"),
        (("{file}", "{here}/copy"), "INVALID_ARGUMENT", "name a sandbox"),
        (("-", "{here}/copy"), "INVALID_ARGUMENT", "name a sandbox"),
        (("{file}", "no-such-box:x"), "SANDBOX_NOT_FOUND", ""),
        (("{here}/missing", "{box}:x"), "FILE_NOT_FOUND", "check the path"),
        (("{box}:missing", "{here}/copy"), "FILE_NOT_FOUND", "check the path"),
        (("{box}:/etc/passwd", "{here}/no/such/dir/copy"), "FILE_NOT_FOUND", ""),
        (("{file}", "{file}", "{box}:x"), "INVALID_ARGUMENT", "one at a time"),
        (("{file}", "{box}:/etc/hosts", "{box}:/etc/passwd"), "NOT_A_DIRECTORY", "name a directory"),
        (("{file}", "{box}:/etc/passwd/"), "NOT_A_DIRECTORY", "name a directory"),
        (("{box}:/etc/passwd", "{box}:/etc/hosts", "{file}"), "NOT_A_DIRECTORY", "name a directory"),
        (("{file}", "{box}:/etc/passwd"), "PERMISSION_DENIED", ""),
        (("-", "{file}", "{box}:x"), "INVALID_ARGUMENT", "one SRC at a time"),
        (("-", "{box}:x/"), "INVALID_ARGUMENT", "{box}:x/NAME"),
        (("{box}:/etc", "-"), "INVALID_ARGUMENT", "name a directory"),
        (("--resume", "{box}:/etc/passwd", "{here}/copy"), "INVALID_ARGUMENT", "leave it out"),
        (("", "{box}:x"), "INVALID_ARGUMENT", "give a file"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_written(
    skerry: Skerry, box: str, file: Path, arguments: tuple[str, ...], code: str, hint: str
) -> None:
    words = {"box": box, "file": str(file), "here": str(file.parent)}
    done = skerry("cp", *(argument.format(**words) for argument in arguments))
    assert (done.code, done.out, f"({code})" in done.err) == (1, b"", True), done.err
    assert hint.format(**words) in done.err
    assert names(skerry, box) == []
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("arguments", [(), ("one",), ("--merge", "--replace", "a", "b:c")])
def test_too_few_paths_and_contradictions_are_wrong_usage(skerry: Skerry, arguments: tuple[str, ...]) -> None:
    assert skerry("cp", *arguments).code == 2


def test_a_full_disk_is_an_error_and_leaves_no_half_file(skerry: Skerry, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as big:
        big.write(b"x" * 40_000_000)
    small = skerry("create", "--memory", "64MB").text.strip()  # a quarter of it for /dev/shm
    try:
        done = skerry("cp", str(tmp_path / "big"), f"{small}:/dev/shm/big", "-o", "json")
        assert (done.code, done.error["code"]) == (1, "DISK_FULL")
        assert names(skerry, small, "/dev/shm") == []
    finally:
        skerry("rm", small)


def test_a_terminal_has_a_progress_bar_and_a_pipe_has_none(skerry: Skerry, box: str, tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as big:
        big.write(b"x" * 100_000_000)
    with Terminal("cp", str(tmp_path / "big"), f"{box}:/dev/null") as terminal:
        assert terminal.finish() == 1  # no file
    with Terminal("cp", str(tmp_path / "big"), f"{box}:big") as terminal:
        assert terminal.finish() == 0
        assert b"/100.0 MB" in terminal.output
        assert b"MB/s" in terminal.output
    with Terminal("cp", "-q", f"{box}:big", str(tmp_path / "back")) as terminal:
        assert terminal.finish() == 0
        assert terminal.output == b""
    assert (tmp_path / "back").stat().st_size == 100_000_000
    done = skerry("cp", f"{box}:big", str(tmp_path / "again"))
    assert (done.out, done.err) == (b"", "")
