"""The rooms: few modules in each, none too long, named by nouns, and entered through their doors."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/skerry"
MAX_MODULES = 15
ONE_PER_RESOURCE = {"src/skerry/server/api/v1", "src/skerry/cli/commands", "tests/cli/commands"}
"""A module for each resource or command: these grow with the product."""
MAX_LINES = 600
GENERATED = {"src/skerry/sdk/blocking/_sync.py"}
NOUNS = {"listing", "greeting", "ring"}
"""Modules whose names end as a gerund does and are none."""
PACKAGES = ("wire", "core", "trees", "archive", "http", "templates", "sdk", "testing", "audit", "server", "cli")
PROVIDERS = tuple(sorted(path.name for path in (SOURCE / "providers").iterdir() if (path / "__init__.py").exists()))


def files(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = sorted(set(filter(None, listed.stdout.decode().split("\0"))))
    return [ROOT / name for name in names if (ROOT / name).exists() and "/builtin/" not in name]


MODULES = files("src/skerry/*.py", "tests/*.py", "tools/*.py", "agent/*.c", "launcher/*.c")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 400
    assert set(PROVIDERS) >= {"local", "remote"}


def test_a_directory_has_few_modules() -> None:
    counts = Counter(shown(path.parent) for path in MODULES if path.name != "__init__.py")
    crowded = {name: count for name, count in counts.items() if count > MAX_MODULES and name not in ONE_PER_RESOURCE}
    assert crowded == {}


def test_a_file_has_few_lines() -> None:
    lines = {shown(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES and name not in GENERATED} == {}


def test_a_module_is_named_by_a_noun() -> None:
    stems = {path.stem for path in MODULES if path.is_relative_to(SOURCE)}
    assert {stem for stem in stems if stem.endswith("ing")} <= NOUNS


def package_of(module: str) -> str | None:
    """The package with a door that a module is behind; None: one of the root's own modules."""
    parts = module.split(".")[1:]
    if parts[:1] == ["providers"] and len(parts) > 1:
        return f"providers.{parts[1]}"
    return parts[0] if parts and parts[0] in PACKAGES else None


def trespasses(source: str, module: str) -> list[str]:
    """The imports of a module that reach behind another package's door."""
    own = package_of(module)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        elif isinstance(node, ast.Import):
            imported = [name.name for name in node.names]
        else:
            continue
        for name in imported:
            other = package_of(name) if name.startswith("skerry.") else None
            if other not in (None, own) and name != f"skerry.{other}":
                found.append(f"{module}:{node.lineno} imports {name}")
    return found


@pytest.mark.parametrize("package", [*PACKAGES, "providers"])
def test_other_packages_are_used_through_their_door(package: str) -> None:
    found = []
    for path in files(f"src/skerry/{package}/*.py"):
        found += trespasses(path.read_text(), ".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    assert found == []


def imports(path: Path, modules: set[str]) -> set[str]:
    """Which of `modules` a file imports, also for type checkers alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= names & modules or {node.module or ""} & modules
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & modules
    return found


def test_no_modules_of_a_provider_import_each_other() -> None:
    paths = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path
        for path in files("src/skerry/providers/*.py")
        if path.name != "__init__.py"
    }
    graph = {module: imports(path, set(paths)) for module, path in paths.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert order.index("skerry.providers.local.sandbox.changes") < order.index("skerry.providers.local.engine")


def test_what_reaches_behind_a_door_is_found() -> None:
    source = "from skerry.core.errors import Conflict\nfrom skerry.core import Timeout\nimport skerry.wire.frames\n"
    assert trespasses(source, "skerry.sdk.example") == [
        "skerry.sdk.example:1 imports skerry.core.errors",
        "skerry.sdk.example:3 imports skerry.wire.frames",
    ]
