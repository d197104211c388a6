"""create, ps, info, rm, gc: sandboxes that outlive the command that made them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Skerry
from tests.cli.pty import Terminal


def test_create_prints_an_id_that_the_other_commands_take(skerry: Skerry, box: str) -> None:
    assert skerry.listed().count(box) == 1
    assert skerry("exec", box, "--", "sh", "-c", "echo $0; exit 4", "here").code == 4


def test_a_name_is_as_good_as_the_id_and_is_free_again_afterwards(skerry: Skerry) -> None:
    for _ in range(2):
        assert skerry("create", "--name", "same").code == 0
        taken = skerry("create", "--name", "same")
        assert (taken.code, "(CONFLICT)" in taken.err) == (1, True)
        assert skerry("exec", "same", "true").code == 0
        assert skerry("rm", "same").code == 0


def test_ps_shows_a_row_for_each_and_json_has_all_of_it(skerry: Skerry) -> None:
    made = skerry("create", "--name", "listed", "--lifetime", "600", "--memory", "300MB", "-o", "json").json
    try:
        header, *rows = skerry("ps").text.splitlines()
        assert header.split() == ["ID", "NAME", "STATE", "AGE", "EXPIRES", "MEMORY", "TEMPLATE"]
        row = next(row for row in rows if made["id"] in row)
        assert "listed" in row
        assert "running" in row
        assert "300 MB" in row
        listed = {info["id"]: info for info in skerry("ps", "-o", "json").json}
        assert listed[made["id"]]["name"] == "listed"
        assert listed[made["id"]]["expires_at"] - made["created_at"] < 601
    finally:
        skerry("rm", "listed")


def test_ps_of_nothing_is_empty(skerry: Skerry) -> None:
    assert skerry("ps").out == b""
    assert skerry("ps", "-o", "json").json == []


def test_info_tells_state_limits_and_usage(skerry: Skerry, box: str) -> None:
    text = skerry("info", box).text
    assert f"id:          {box}\n" in text
    assert "state:       running\n" in text
    data = skerry("info", box, "-o", "json").json
    assert data["id"] == box
    assert data["state"] == "running"
    assert data["usage"]["pids"] >= 1
    assert data["env_names"] == sorted(set(data["env_names"]))


def test_env_given_to_create_is_there_in_every_command(skerry: Skerry) -> None:
    sandbox_id = skerry("create", "-e", "COLOR=green").text.strip()
    try:
        assert skerry("exec", sandbox_id, "--", "printenv", "COLOR").out == b"green\n"
    finally:
        skerry("rm", sandbox_id)


def test_rm_removes_those_that_are_there_and_names_the_one_that_is_not(skerry: Skerry) -> None:
    first, second = (skerry("create").text.strip() for _ in range(2))
    done = skerry("rm", first, "not-there", second)
    assert done.code == 1
    assert done.text.split() == [first, second]
    assert done.err.startswith("error: ")
    assert "(SANDBOX_NOT_FOUND)" in done.err


def test_rm_removes_a_sandbox_whose_record_is_damaged(skerry: Skerry, skerry_home: Path) -> None:
    sandbox_id = skerry("create", "--name", "hurt").text.strip()
    (skerry_home / "sandboxes" / sandbox_id / "record.json").write_text("{")
    broken = skerry("info", "hurt")
    assert (broken.code, "(CORRUPTED)\nhint: " in broken.err) == (1, True)
    assert skerry("rm", sandbox_id).text == f"{sandbox_id}\n"
    assert skerry.ids() == []


def test_rm_all_leaves_nothing(skerry: Skerry) -> None:
    made = [skerry("create").text.strip() for _ in range(2)]
    refused = skerry("rm", "--all")  # a script must say that it means it
    assert refused.code == 2
    assert re.search(r"would destroy \d+ sandboxes on this machine.*\nhint: .*--yes", refused.err), refused.err
    assert set(made) <= set(skerry.ids())
    with Terminal("rm", "--all") as terminal:
        terminal.read_until(b"on this machine, with their files. Continue? [y/N] ")
        terminal.type(b"\n")
        assert terminal.finish() == 1
        assert b"nothing was destroyed" in terminal.output
    assert set(made) <= set(skerry.ids())
    done = skerry("rm", "--all", "--yes", "-o", "json")
    assert done.code == 0
    assert set(made) <= set(done.json["removed"])
    assert skerry.ids() == []
    assert skerry("rm", "--all").code == 0  # nothing to ask about


def test_rm_without_anything_is_wrong_usage(skerry: Skerry) -> None:
    assert skerry("rm").code == 2
    assert skerry("rm", "--all", "x").code == 2


def test_gc_removes_what_is_past_its_lifetime_and_nothing_else(skerry: Skerry, box: str) -> None:
    short = skerry("create", "--lifetime", "0.5").text.strip()
    ended = skerry("exec", short, "--", "sleep", "20")
    assert ended.code == 125
    assert json.loads(skerry("gc", "-o", "json").text)["removed"] in ([], [short])
    assert skerry.ids() == [box]
    assert skerry("gc").text == "nothing to remove\n"


def test_an_unknown_sandbox_is_one_clear_line(skerry: Skerry) -> None:
    for command, code in ((("info",), 1), (("cat", "x"), 1), (("ls",), 1), (("logs",), 1), (("kill",), 1)):
        done = skerry(command[0], "no-such-sandbox", *command[1:])
        assert (done.code, done.out) == (code, b""), command
        assert "(SANDBOX_NOT_FOUND)\nhint: " in done.err
    assert skerry("exec", "no-such-sandbox", "true").code == 125


def test_a_working_directory_that_is_missing_is_made(skerry: Skerry) -> None:
    made = skerry("create", "--workdir", "/app/x")
    assert made.code == 0
    assert skerry("exec", made.text.strip(), "--", "sh", "-c", "touch mine; pwd").out == b"/app/x\n"
    skerry("rm", made.text.strip())
    assert skerry("run", "--workdir", "/app/y", "--", "sh", "-c", "touch mine; pwd").out == b"/app/y\n"
