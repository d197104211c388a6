"""The templates by name: what comes with Skerry is complete, and names lead to it or to the nearest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import skerry.templates
from skerry.core.errors import InvalidArgument, TemplateNotFound, Unsupported
from skerry.templates import Template, builtin, load, resolve, steps, versions

ROOT = Path(__file__).parents[2]
DIRECTORY = Path(skerry.templates.__file__).parent / "builtin"
PROJECTS = ["nextjs", "node-ts", "react-ts", "svelte-ts", "vue-ts"]
EXACT = re.compile(r"\d+\.\d+\.\d+")


def test_what_comes_with_skerry() -> None:
    ports = {template.name: template.ports[:1] for template in builtin()}
    assert ports == {
        "host": (),
        "debian": (),
        "fastapi": (8000,),
        "full-stack-dev": (),
        "nextjs": (3000,),
        "node": (),
        "node-ts": (3000,),
        "python": (),
        "pytorch": (),
        "react-ts": (5173,),
        "svelte-ts": (5173,),
        "vue-ts": (5173,),
    }


@pytest.mark.parametrize(
    ("reference", "name", "version"),
    [
        ("host", "host", "1"),
        ("python", "python", "3."),
        ("python:3", "python", "3."),
        ("python3", "python", "3."),
        ("node", "node", "24."),
        ("node:latest", "node", "24."),
        ("node:20", "node", "20."),
        ("node:22", "node", "22."),
        ("nodejs", "node", "24."),
        ("nodejs20", "node", "20."),
        ("nodejs18", "node", "18."),
        ("nodejs18.x", "node", "18."),
        ("node:18", "node", "18."),
        ("node-22", "node", "22."),
        ("node22", "node", "22."),
        ("node:v20.x", "node", "20."),
        ("typescript", "node-ts", "24."),
        ("javascript", "node", "24."),
        ("javascript22", "node", "22."),
        ("go", "full-stack-dev", ""),
        ("rust", "full-stack-dev", ""),
        ("bash", "debian", ""),
        ("fastapi", "fastapi", "0."),
        ("nodejs:20", "node", "20."),
        ("react", "react-ts", "19."),
        ("react-ts:19", "react-ts", "19."),
        ("next", "nextjs", "16."),
    ],
)
def test_names_take_a_version_and_aliases(reference: str, name: str, version: str) -> None:
    found = resolve(reference)
    assert (found.name, found.version.startswith(version)) == (name, True)


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("pyton", "python"),
        ("vue-tsx", "vue-ts"),
        ("Debian", "debian"),
        ("", "react-ts"),
        ("quux", "node-ts"),
        ("quux:3", "node-ts"),
        ("nodejs16", "there is node:18."),
        ("node:19", "there is node:20."),
        ("node:23", "there is node:24."),
        ("node:18-alpine", "docker://node:18-alpine"),
        ("node:2", "node:20."),
        ("node:20.20.2.1", "node:20."),
        ("python:2.7", "python:3."),
        ("python:2.7", "docker://python:2.7"),
        ("python:3.11-slim", "docker://python:3.11-slim"),
        ("pyton2.7", "'python'"),
        ("python-data", "'python'"),
        ("my-react", "'react'"),
        ("reactjs", "'react'"),
        ("postgres:15", "docker://postgres:15"),
    ],
)
def test_an_unknown_name_or_version_names_the_nearest(reference: str, hint: str) -> None:
    with pytest.raises(TemplateNotFound) as caught:
        resolve(reference)
    assert hint in caught.value.hint
    assert caught.value.code == "TEMPLATE_NOT_FOUND"
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("reference", "nosuch deno nuxt vite most code model centos ruby postgres base test".split())
def test_what_resembles_nothing_is_not_said_to_be_meant(reference: str) -> None:
    with pytest.raises(TemplateNotFound) as caught:
        resolve(reference)
    assert "did you mean" not in caught.value.hint
    assert "node-ts" in caught.value.hint


@pytest.mark.parametrize(
    ("reference", "instead"), [("pytorch-gpu", "pytorch"), ("gpu-ml", "pytorch"), ("python-gpu:3.11", "python")]
)
def test_what_needs_a_gpu_is_refused_and_names_what_does_not(reference: str, instead: str) -> None:
    with pytest.raises(Unsupported, match="no provider has one") as caught:
        resolve(reference)
    assert caught.value.option == "template"
    assert resolve(instead).name in caught.value.hint


def test_a_template_of_ones_own_is_found_too_but_replaces_none() -> None:
    mine = Template(name="shop", version="2", aliases=("store", "python"))
    assert resolve("store:2", [mine]) is not None
    assert resolve("shop", [mine]) == mine
    assert resolve("python", [mine]).name == "python"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        resolve(3)  # type: ignore[arg-type]


def test_versions_of_node_begin_with_the_newest() -> None:
    offered = [tuple(map(int, version.split("."))) for version in versions(resolve("node"))]
    assert offered == sorted(offered, reverse=True)
    assert [version[0] for version in offered] == [24, 22, 20, 18]


@pytest.mark.parametrize("template", builtin(), ids=lambda template: template.name)
def test_each_leads_to_a_root_and_its_steps_are_named(template: Template) -> None:
    seen = [template.name]
    while template.base not in (None, "host"):
        assert template.base is not None
        template = resolve(template.base)
        seen.append(template.name)
    assert len(seen) == len(set(seen))
    assert all(step.name and step.run for step in steps(template))


@pytest.mark.parametrize("name", PROJECTS)
def test_projects_are_locked_to_exact_versions_for_every_platform(name: str) -> None:
    project = DIRECTORY / name / "project"
    package, lock = (json.loads((project / file).read_text()) for file in ("package.json", "package-lock.json"))
    wanted = package.get("dependencies", {}) | package.get("devDependencies", {})
    locked = lock["packages"]
    for dependency, version in wanted.items():
        assert EXACT.fullmatch(version), dependency
        assert locked[f"node_modules/{dependency}"]["version"] == version
    for path, entry in locked.items():
        if path:
            assert entry["integrity"].startswith("sha512-"), path
            assert "resolved" not in entry, path
        for optional in entry.get("optionalDependencies", {}):  # npm drops those it cannot find, and `npm ci` fails
            assert {f"node_modules/{optional}", f"{path}/node_modules/{optional}"} & locked.keys(), optional
    template = load(DIRECTORY / name)
    assert {"package.json", "package-lock.json", "tsconfig.json", ".gitignore"} <= template.files.keys()
    assert package["scripts"]["dev"]


def test_python_packages_are_pinned_and_those_asked_for_are_among_them() -> None:
    template = resolve("python")
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9.]+", package) for package in template.packages.pip)
    asked = (DIRECTORY / "fastapi/project/requirements.txt").read_text().split()
    assert asked and set(asked) <= set(template.packages.pip)


def test_no_file_names_a_registry_or_a_mirror() -> None:
    hosts = re.compile(
        "|".join(["registry" + r"\.", "npm" + "js", "py" + r"pi\.", "python" + "hosted", "deb" + r"\.deb"])
    )
    found = [
        str(path)
        for path in DIRECTORY.parent.glob("**/*")
        if path.is_file() and path.suffix != ".pyc" and hosts.search(path.read_text())
    ]
    assert found == []


def test_nothing_of_a_build_is_among_the_files() -> None:
    built = {"node_modules", "dist", "build", ".next", ".svelte-kit", "__pycache__"}
    assert [path for path in DIRECTORY.glob("*/project/**/*") if built & set(path.parts[len(DIRECTORY.parts) :])] == []


def test_the_wheel_carries_every_file_of_the_templates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = set(wheel.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", str(DIRECTORY)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert tracked
    assert {path.removeprefix("src/") for path in tracked} <= packed
