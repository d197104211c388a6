"""Hints in the words of their readers, in tracebacks, and over HTTP and pickles."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import traceback
from pathlib import Path

import pytest

from skerry import ExecResult, ExecStatus, ExecTimeout, FileMissing, OutOfMemory, QuotaExceeded, SkerryError
from skerry.core import check_lifetime, check_seconds, from_problem, hint_for, human_duration, to_problem
from skerry.core.hints import _PHRASES
from skerry.core.problems import BY_CODE

SOURCE = Path(__file__).parents[2] / "src/skerry"
RESULT = ExecResult(
    command="x",
    exit_code=None,
    status=ExecStatus.TIMED_OUT,
    stdout_bytes=b"so far",
    stderr_bytes=b"",
    duration=1,
    pid=7,
)
PYTHON = re.compile(r"\b[a-z_]+\([a-z_]*=?…?\)|\b[a-z_]+=(True|False|…|['\"]|$)|\b(Sandbox|snapshots|ports)\.\w+")
"""What only somebody who writes Python can do."""


def literal_hints() -> list[str]:
    found = [error.hint for error in BY_CODE.values()]
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assigned = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("hint", "_HINT", "HINT")
            if assigned or (isinstance(node, ast.keyword) and node.arg == "hint"):
                found += [part.value for part in ast.walk(node.value) if _is_text(part)]
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_hint_tells_the_command_line_or_http_to_write_python() -> None:
    hints = literal_hints()
    assert len(hints) > 300 and sum(bool(PYTHON.search(hint)) for hint in hints) > 15
    wrong = [
        (reader, text) for reader in ("cli", "http") for hint in hints if PYTHON.search(text := hint_for(reader, hint))
    ]
    assert not wrong


def test_every_phrase_is_in_a_hint_and_comes_back_from_http_as_python_has_it() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "hints.py")
    assert not [python for python, _, _ in _PHRASES if python not in text and python.replace('"', '\\"') not in text]
    for hint in literal_hints():
        assert hint_for("python", hint_for("http", hint), written_for="http") == hint


def test_a_server_sends_its_hint_for_http_and_a_python_client_reads_its_own() -> None:
    problem = to_problem(OutOfMemory("killed", RESULT))
    assert "PATCH /v1/sandboxes/{id}/limits" in problem["hint"] and "Resources(" not in problem["hint"]
    assert from_problem(problem).hint == OutOfMemory.hint
    assert "--memory" in hint_for("cli", OutOfMemory.hint)


def test_a_traceback_shows_the_hint_once_and_the_text_of_the_error_stays() -> None:
    error = QuotaExceeded("too much", hint="first")
    error.hint = "ask for less"
    error.add_note("of the caller")
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("QuotaExceeded: too much\nhint: ask for less\nof the caller\n")
    assert str(error) == "too much"
    assert "hint" not in "".join(traceback.format_exception(QuotaExceeded("none")))


@pytest.mark.parametrize(
    "error",
    [ExecTimeout("late", RESULT), FileMissing("gone", errno=2, hint="look elsewhere"), OutOfMemory("x", RESULT)],
)
def test_a_pickled_or_copied_error_has_everything_of_the_first(error: SkerryError) -> None:
    error.add_note("of the caller")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error) and str(again) == str(error) and again.args == error.args
        assert vars(again) == vars(error) and getattr(again, "errno", None) == getattr(error, "errno", None)
        assert traceback.format_exception_only(again) == traceback.format_exception_only(error)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("500ms", 0.5), ("2d", 172800), ("1.5h", 5400)]
)
def test_a_duration_is_read_as_people_write_it_and_written_so(text: str, seconds: float) -> None:
    assert check_seconds(text) == seconds
    assert check_seconds(human_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "h", "30m1h", "1x", "-5s", "0", "0s", "nan", "inf", "1h 30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        check_seconds(text)


def test_a_lifetime_above_the_maximum_names_the_setting_and_reads_in_words() -> None:
    with pytest.raises(QuotaExceeded, match="a lifetime of 30d is above the maximum of 1d") as caught:
        check_lifetime("30d")
    assert "SKERRY_MAX_LIFETIME" in caught.value.hint
