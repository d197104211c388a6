"""The architecture page is true: every path in it exists, and every function that it names behind a path."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/design/architecture.md").read_text()
TEXT = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
ROUTE = re.compile(r"(?:[A-Z]+ )?/.*")
CHAIN = re.compile(r"[\w.]+(?: → [\w.]+)*")


def files(*patterns: str) -> list[Path]:
    """What belongs to the repository: the directory that a move has left empty does not."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).exists()]


@cache
def tree() -> frozenset[Path]:
    return frozenset(path for file in files() for path in (file, *file.parents) if path.is_relative_to(ROOT))


def quoted() -> list[str]:
    """What stands in backticks and has a slash or the name of a module: a path, or `path: function → function`."""
    found = {" ".join(text.split()) for text in re.findall(r"`([^`]+)`", TEXT)}
    return sorted(text for text in found if not ROUTE.fullmatch(text) and re.search(r"/|\.py\b", text))


QUOTED = quoted()
STEPS = [text for text in QUOTED if ": " in text]


def find(text: str) -> Path | None:
    """A path of the tree, relative to the root or to the package."""
    for start in (ROOT, ROOT / "src/skerry"):
        path = start / text
        if path in tree() and (path.is_dir() or not text.endswith("/")):
            return path
    return None


def assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def defined(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    """The names that a module makes; a method also with its class."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from defined(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from {node.name, within + node.name}
        else:
            yield from assigned(node)


@cache
def names(path: Path) -> frozenset[str]:
    text = path.read_text()
    if path.suffix == ".py":
        return frozenset(defined(ast.parse(text).body))
    return frozenset(re.findall(r"^\w[^;={}]*?\b(\w+)\([^;{}]*\)\s*\{", text, re.MULTILINE))


def test_there_is_something_to_look_at() -> None:
    assert len(QUOTED) > 150 and len(STEPS) > 80
    assert {"sdk/connection/", "tests/test_architecture.py", "core/models.py: ExecResult"} <= set(QUOTED)


@pytest.mark.parametrize("text", QUOTED)
def test_a_path_is_there(text: str) -> None:
    assert find(text.partition(": ")[0]) is not None


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_in_its_file(step: str) -> None:
    text, _, chain = step.partition(": ")
    path = find(text)
    assert path is not None and path.is_file() and CHAIN.fullmatch(chain)
    assert [name for name in chain.split(" → ") if name not in names(path)] == []


def test_twenty_questions_have_one_path_each() -> None:
    section = TEXT.partition("## Twenty questions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| ([^|]+\?) \| `([^`]+)` \|$", section, re.MULTILINE)
    assert len(rows) == section.count("?") >= 20
    assert len({path for _, path in rows}) == len(rows)
    assert [path for _, path in rows if (there := find(path)) is None or not there.is_file()] == []


def test_every_room_is_in_the_table() -> None:
    section = TEXT.partition("## Packages")[2].partition("\n## ")[0]
    listed = {path for text in re.findall(r"`([^`]+)`", section) if (path := find(text)) is not None}
    rooms = {path.parent for path in files("src/skerry/*/__init__.py", "agent/*.c", "launcher/*.c")} - listed
    # The suite has its own page, and the others are no rooms.
    others = re.compile(
        r"agent/fuzz|src/skerry/(providers|testing/cases/.*|server/store/sqlite/migrations|server/web/models)"
    )
    assert [name for room in rooms if not others.fullmatch(name := str(room.relative_to(ROOT)))] == []


def test_what_is_not_there_is_not_found() -> None:
    assert find("sdk/building.py") is None
    assert find("tests/isolation/") is None
    assert "Session.take" not in names(ROOT / "src/skerry/sdk/connection/session.py")
    assert "recv" not in names(ROOT / "agent/link/conn.c") and "readable" in names(ROOT / "agent/link/conn.c")
