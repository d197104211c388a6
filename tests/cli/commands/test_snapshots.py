"""snapshot create, ls, restore, rm and tree; clone, fork, and create --snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Skerry


@pytest.fixture(autouse=True)
def no_snapshots(skerry: Skerry) -> Iterator[None]:
    yield
    for each in skerry("snapshot", "ls", "-q").text.split():
        skerry("snapshot", "rm", each)


def test_a_snapshot_is_taken_listed_restored_and_removed(skerry: Skerry, box: str) -> None:
    assert skerry("exec", box, "--", "sh", "-c", "echo one > file").code == 0
    first = skerry("snapshot", "create", box, "before", "-d", "all is well").text.strip()
    assert first.startswith("sn-")
    assert skerry("exec", box, "--", "sh", "-c", "echo two > file").code == 0
    made = skerry("snapshot", "create", box, "-o", "json").json
    assert (made["parent"], made["sandbox_id"], made["kind"]) == (first, box, "disk")
    header, *rows = skerry("snapshot", "ls", box).text.splitlines()
    assert header.split() == ["ID", "NAME", "SANDBOX", "AGE", "SIZE", "KIND", "PARENT", "DESCRIPTION"]
    assert [row.split()[0] for row in rows] == [made["id"], first]
    assert "all is well" in rows[1]
    assert skerry("snapshot", "restore", box, "before").text == f"{box} is running\n"
    assert skerry("exec", box, "cat", "file").text == "one\n"
    assert skerry("snapshot", "rm", "before", made["id"], "-o", "json").json == {"removed": [first, made["id"]]}
    assert skerry("snapshot", "ls").out == b""


def test_a_tree_is_drawn_by_parents(skerry: Skerry, box: str) -> None:
    for name in ("root", "left"):
        skerry("snapshot", "create", box, name)
    skerry("snapshot", "restore", box, "root")
    skerry("snapshot", "create", box, "right")
    lines = skerry("snapshot", "tree", box).text.splitlines()
    assert [line.partition("  (")[0].split()[:2] for line in lines] == [
        ["└──", "root"],
        ["├──", "left"],
        ["└──", "right"],
    ]
    [root] = skerry("snapshot", "tree", "-o", "json").json
    assert [node["snapshot"]["name"] for node in root["children"]] == ["left", "right"]


def test_what_is_not_there_or_taken_is_said(skerry: Skerry, box: str) -> None:
    skerry("snapshot", "create", box, "taken")
    for arguments, code in (
        (("snapshot", "create", box, "taken"), "CONFLICT"),
        (("snapshot", "restore", box, "nothing"), "SNAPSHOT_NOT_FOUND"),
        (("snapshot", "create", "no-such-box"), "SANDBOX_NOT_FOUND"),
        (("create", "--snapshot", "nothing"), "SNAPSHOT_NOT_FOUND"),
        (("clone", "no-such-box"), "SANDBOX_NOT_FOUND"),
        (("fork", box, "-n", "0"), "INVALID_ARGUMENT"),
    ):
        done = skerry(*arguments, "-o", "json")
        assert (done.code, done.error["code"]) == (1, code), arguments
    done = skerry("snapshot", "rm", "nothing", "taken")
    assert (done.code, "(SNAPSHOT_NOT_FOUND)" in done.err, done.text.startswith("sn-")) == (1, True, True)


def test_clones_forks_and_creates_have_the_files(skerry: Skerry, box: str) -> None:
    assert skerry("exec", box, "--", "sh", "-c", "echo here > file").code == 0
    skerry("snapshot", "create", box, "kept")
    made = [
        skerry("clone", box, "--name", "copied", "--env", "MODE=test", "--memory", "300MB").text.strip(),
        *skerry("fork", box, "-n", "2").text.split(),
        skerry("create", "--snapshot", "kept").text.strip(),
    ]
    try:
        assert len(set(made)) == 4
        for each in made:
            assert skerry("exec", each, "cat", "file").text == "here\n"
        assert skerry("exec", "copied", "--", "sh", "-c", "echo $MODE").text == "test\n"
        assert skerry("info", "copied", "-o", "json").json["resources"]["memory"] == 300_000_000
    finally:
        skerry("rm", *made)
