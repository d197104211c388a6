"""cat and ls: a look at a sandbox's files."""

from __future__ import annotations

from tests.cli.conftest import Skerry


def test_cat_writes_a_file_byte_for_byte(skerry: Skerry, box: str) -> None:
    content = bytes(range(256)) * 10_000
    assert skerry("exec", box, "--", "tee", "data", stdin=content).out == content
    assert skerry("cat", f"{box}:data").out == content
    assert skerry("cat", box, "/workspace/data").out == content


def test_cat_of_what_is_no_file_is_an_error_of_its_own(skerry: Skerry, box: str) -> None:
    skerry("exec", box, "--", "mkfifo", "pipe")
    for path, code in (
        ("missing", "FILE_NOT_FOUND"),
        ("/workspace", "IS_A_DIRECTORY"),
        ("pipe", "NOT_A_FILE"),
        ("/root/secret", "PERMISSION_DENIED"),
    ):
        done = skerry("cat", box, path)
        assert (done.code, done.out, code in done.err) == (1, b"", True), (path, done.err)


def test_cat_needs_exactly_one_path(skerry: Skerry, box: str) -> None:
    assert "(INVALID_ARGUMENT)" in skerry("cat", box).err
    assert "(INVALID_ARGUMENT)" in skerry("cat", f"{box}:a", "b").err


def test_ls_lists_names_long_lines_and_json(skerry: Skerry, box: str) -> None:
    skerry("exec", box, "--", "sh", "-c", "mkdir d; printf 12345 > f; ln -s f l; chmod 640 f")
    assert skerry("ls", box).text == "d\nf\nl\n"
    assert skerry("ls", f"{box}:/workspace").text == "d\nf\nl\n"
    directory, file, link = skerry("ls", "-l", box).text.splitlines()
    assert directory.startswith("drwxr-xr-x user user ")
    assert file.startswith("-rw-r----- user user ")
    assert " 5 " in file
    assert link.endswith(" l -> f")
    data = skerry("ls", box, "-o", "json").json
    assert [(entry["path"], entry["type"]) for entry in data] == [("d", "dir"), ("f", "file"), ("l", "link")]
    assert skerry("ls", "-l", f"{box}:d").out == b""


def test_ls_of_a_missing_directory_is_an_error(skerry: Skerry, box: str) -> None:
    done = skerry("ls", box, "nowhere", "-o", "json")
    assert (done.code, done.error["code"]) == (1, "FILE_NOT_FOUND")
