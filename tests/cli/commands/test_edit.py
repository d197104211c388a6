"""edit: there and back through an editor, and never over somebody else's change."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import SKERRY, Outcome, Skerry


@pytest.fixture
def editor(tmp_path: Path) -> Path:
    """A program that edits by running the shell script a test puts in it."""
    path = tmp_path / "editor"
    path.touch(mode=0o755)
    return path


def run(skerry: Skerry, where: str, editor: Path, script: str, **env: str) -> Outcome:
    editor.write_text(f"#!/bin/sh\n{script}\n")
    temporary = editor.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    return skerry("edit", where, env={"VISUAL": "", "EDITOR": str(editor), "TMPDIR": str(temporary)} | env)


def left(editor: Path) -> list[Path]:
    """The local copies that are still there."""
    return [path for path in (editor.parent / "temporary").rglob("*") if path.is_file()]


@pytest.fixture
def file(skerry: Skerry, box: str) -> str:
    skerry("exec", box, "--", "sh", "-c", "echo old > note.txt; chmod 640 note.txt")
    return f"{box}:note.txt"


def test_a_changed_text_goes_back_and_keeps_its_mode(skerry: Skerry, box: str, file: str, editor: Path) -> None:
    seen = editor.parent / "seen"
    done = run(skerry, file, editor, f'stat -c "%a %n" "$1" > {seen}; sed -i s/old/new/ "$1"')
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert skerry("cat", file).out == b"new\n"
    assert skerry("ls", box, "-o", "json").json[0]["mode"] == 0o640
    mode, name = seen.read_text().split()
    assert (mode, Path(name).name) == ("600", "note.txt")
    assert left(editor) == []


def test_an_unchanged_text_is_not_written(skerry: Skerry, box: str, file: str, editor: Path) -> None:
    before = skerry("ls", box, "-o", "json").json
    done = run(skerry, file, editor, "true")
    assert (done.code, done.err) == (0, "nothing was changed\n")
    assert skerry("ls", box, "-o", "json").json == before
    assert left(editor) == []


def test_an_editor_that_fails_leaves_the_file_as_it_was(skerry: Skerry, file: str, editor: Path) -> None:
    for script, reason in (
        ("echo lost > $1; exit 1", "exited with 1"),
        ("kill -9 $$", "signal 9"),
        ("rm $1", "removed"),
    ):
        done = run(skerry, file, editor, script)
        assert (done.code, reason in done.err) == (1, True), done.err
        assert skerry("cat", file).out == b"old\n"
        assert left(editor) == []
    done = run(skerry, file, editor, "", EDITOR="/no/such/editor")
    assert (done.code, "(COMMAND_NOT_FOUND)" in done.err) == (1, True)


def test_a_concurrent_change_is_a_conflict_that_keeps_both_texts(
    skerry: Skerry, box: str, file: str, editor: Path
) -> None:
    done = run(skerry, file, editor, f"echo mine > $1; {SKERRY} exec {box} -- sh -c 'echo their > note.txt'")
    assert done.code == 1
    kept, error, hint = done.err.splitlines()
    assert error.endswith("(CONFLICT)")
    assert skerry("cat", file).out == b"their\n"
    path = Path(re.fullmatch(r"your text is kept in (.*)", kept)[1])  # type: ignore[index]
    assert path.read_text() == "mine\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(path) in hint


def test_a_sandbox_that_goes_meanwhile_keeps_the_text(skerry: Skerry, box: str, file: str, editor: Path) -> None:
    done = run(skerry, file, editor, f"echo mine > $1; {SKERRY} rm {box}")
    assert (done.code, "(SANDBOX_NOT_FOUND)" in done.err) == (1, True)
    assert [path.read_text() for path in left(editor)] == ["mine\n"]


def test_a_new_file_is_made_unless_somebody_else_makes_it(skerry: Skerry, box: str, editor: Path) -> None:
    assert run(skerry, f"{box}:sub/new", editor, "echo text > $1").code == 0
    assert skerry("cat", f"{box}:sub/new").out == b"text\n"
    assert run(skerry, f"{box}:empty", editor, "true").code == 0
    assert skerry("ls", box).text == "sub\n"
    done = run(skerry, f"{box}:race", editor, f"echo mine > $1; {SKERRY} exec {box} -- touch race")
    assert (done.code, "(CONFLICT)" in done.err) == (1, True)


def test_ctrl_c_while_the_editor_runs_is_the_editor_s_own(skerry: Skerry, file: str, editor: Path) -> None:
    ready, go = editor.parent / "ready", editor.parent / "go"
    os.mkfifo(ready)
    os.mkfifo(go)
    editor.write_text(f"#!/bin/sh\necho new > $1; echo > {ready}; read line < {go}\n")
    with skerry.start("edit", file, env=os.environ | {"VISUAL": str(editor), "TMPDIR": str(editor.parent)}) as editing:
        ready.read_text()
        editing.send_signal(signal.SIGINT)
        go.write_text("\n")
        _, err = editing.communicate(timeout=30)
    assert (editing.returncode, err) == (0, b"")
    assert skerry("cat", file).out == b"new\n"


def test_visual_comes_before_editor_and_may_have_arguments(skerry: Skerry, file: str, editor: Path) -> None:
    assert run(skerry, file, editor, "exit 9", VISUAL="sed -i s/old/by-visual/").code == 0
    assert skerry("cat", file).out == b"by-visual\n"


@pytest.mark.parametrize(
    ("where", "code"),
    [("local.txt", "INVALID_ARGUMENT"), ("{box}:", "INVALID_ARGUMENT"), ("{box}:/", "INVALID_ARGUMENT"),
     ("{box}:/etc", "IS_A_DIRECTORY"), ("no-such-box:x", "SANDBOX_NOT_FOUND")],
)  # fmt: skip
def test_what_cannot_be_edited_never_starts_the_editor(
    skerry: Skerry, box: str, editor: Path, where: str, code: str
) -> None:
    started = editor.parent / "started"
    done = run(skerry, where.format(box=box), editor, f"touch {started}")
    assert (done.code, f"({code})" in done.err) == (1, True), done.err
    assert not started.exists()
    assert left(editor) == []
