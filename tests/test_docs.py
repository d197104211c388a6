"""The documentation is true: its Python blocks run as written, its links lead somewhere, nothing public is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skerry

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name != "CHANGELOG.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNNABLE = [path for path in PAGES if BLOCK.search(path.read_text())]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_pages_that_must_run_are_among_those_that_do() -> None:
    assert {"README.md", "docs/tutorial.md"} <= {name(path) for path in RUNNABLE}


@pytest.mark.parametrize("path", RUNNABLE, ids=name)
def test_python_blocks_run_as_written_one_after_another(path: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-W", "error", "-c", "\n".join(BLOCK.findall(path.read_text()))]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_readme_examples_print_what_they_say() -> None:
    blocking, parallel = BLOCK.findall((ROOT / "README.md").read_text())
    for program, expected in ((blocking, "hello, user\n 0\n2\n\n"), (parallel, "42\n\n")):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == expected
        assert len([line for line in program.splitlines() if line]) <= 10


OTHER_SYSTEMS: dict[str, dict[str, list[str]]] = json.loads((ROOT / "tests/other_systems.json").read_text())
"""The names in five public descriptions of other systems, spelled as there, by the heading of their section."""


def sections(page: str) -> dict[str, str]:
    text = (ROOT / page).read_text()
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}


def theirs(text: str) -> set[str]:
    """The words of a section's comments that are another system's: those before a colon that is followed by a space."""
    comments = re.findall(r"  # (.*)$", "\n".join(BLOCK.findall(text)), re.MULTILINE)
    return {word for comment in comments for word in re.findall(r"\w+", re.split(r": |:$", comment)[0])}


def test_every_call_of_other_systems_has_ours_beside_it() -> None:
    found = sections("docs/coming-from.md")
    missing = {
        (system, called)
        for system, given in OTHER_SYSTEMS.items()
        for called in given["names"]
        if not re.search(rf"(?<![\w-]){re.escape(called)}(?![\w-])", found[system] + found["Not here yet"])
    }
    assert missing == set()


def test_no_other_system_gets_a_call_that_its_description_does_not_have() -> None:
    found = sections("docs/coming-from.md")
    words = {
        system: {word for called in given["names"] for word in re.findall(r"\w+", called)}
        for system, given in OTHER_SYSTEMS.items()
    }
    assert {(system, word) for system in words for word in theirs(found[system]) - words[system]} == set()
    assert theirs(found["Not here yet"]) - set().union(*words.values()) == set()
    assert set(found) == {*OTHER_SYSTEMS, "Not here yet"}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("https://"):
            continue
        file, _, heading = re.sub(r"\s+", "", target).partition("#")
        there = path.parent / file if file else path
        assert there.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings}, target


def test_every_page_can_be_reached_from_the_readme_and_the_index() -> None:
    for start in (ROOT / "README.md", ROOT / "docs/index.md"):
        text = re.sub(r"\s+", "", start.read_text())
        for page in (ROOT / "docs").glob("**/*.md"):
            if page.name != "index.md":
                assert str(page.relative_to(start.parent)) in text, (name(start), name(page))


def test_every_public_name_is_documented() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    assert [public for public in skerry.__all__ if not re.search(rf"\b{public}\b", text)] == []


def test_every_environment_variable_is_documented() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").glob("**/*.py"))
    page = (ROOT / "docs/reference/environment.md").read_text()
    used = set(re.findall(r"SKERRY_[A-Z_]*[A-Z]\b", code)) - {"SKERRY_ERROR"}  # which is a code
    assert {variable for variable in used if variable not in page} == set()


def test_every_directory_of_tests_is_on_the_map() -> None:
    page = (ROOT / "docs/design/testing.md").read_text()
    there = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {directory for directory in there if f"`tests/{directory}`" not in page} == set()


def test_the_version_is_the_same_everywhere() -> None:
    assert f'version = "{skerry.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## [{skerry.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
