"""A template is checked when it is made; its steps are in order; its digest changes with what decides the result."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import tarfile
from typing import Any

import pytest

from skerry.core.errors import InvalidArgument
from skerry.core.models import Resources
from skerry.templates import Command, File, Packages, Scripts, Template, digest, environment, resolve, steps

FULL = Template(
    name="shop",
    base="node:20",
    packages=Packages(apt=("jq",), pip=("httpx==0.28.1",), npm=("pnpm@10",)),
    files={"src/deep/a.txt": File("a"), "run.sh": File(b"#!/bin/sh\n", 0o755), "/etc/motd": File("hi\n")},
    env={"MODE": "dev"},
    ports=(3000, 9229),
    scripts=Scripts(build=(Command("make all"), Command("\n  ldconfig\n", "root"))),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Shop"),
        ("name", "sb-shop"),
        ("name", ""),
        ("version", "1 2"),
        ("base", "Debian"),
        ("base", "node:"),
        ("base", "shop"),
        ("base", 3),
        ("base", "image:"),
        ("base", "image:-x"),
        ("workdir", "app"),
        ("workdir", "/app/../etc"),
        ("workdir", "/"),
        ("workdir", "/proc/x"),
        ("user", "a b"),
        ("env", {"A B": "x"}),
        ("env", {"A": 1}),
        ("ports", (0,)),
        ("ports", (65536,)),
        ("ports", (True,)),
        ("ports", (80, 80)),
        ("ports", [80]),
        ("aliases", ("A",)),
        ("aliases", "abc"),
        ("description", None),
        ("files", {"../x": File("")}),
        ("files", {"a//b": File("")}),
        ("files", {"/dev/x": File("")}),
        ("files", {"/tmp/x": File("")}),
        ("files", {"a/": File("")}),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(InvalidArgument):
        dataclasses.replace(FULL, **changes)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("apt", "--fix"), ("apt", "jq curl"), ("apt", "JQ"), ("pip", "-r x"), ("npm", "-g"), ("pip", "a\nb"), ("npm", "")],
)
def test_what_is_no_package_is_refused(kind: str, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"packages.{kind}"):
        Packages(**{kind: (name,)})


@pytest.mark.parametrize("mode", [-1, 0o10000, "0755", True])
def test_what_is_no_mode_is_refused(mode: Any) -> None:
    with pytest.raises(InvalidArgument, match="mode"):
        File("", mode)


@pytest.mark.parametrize("run", ["", "  \n", "a\0b", None])
def test_what_is_no_script_is_refused(run: Any) -> None:
    with pytest.raises(InvalidArgument, match="script"):
        Command(run)


def test_apt_packages_cannot_be_put_on_the_machines_own_files() -> None:
    with pytest.raises(InvalidArgument, match="read-only"):
        Template(name="a", base="host", packages=Packages(apt=("jq",)))


def test_steps_are_in_order_and_named_after_what_they_do() -> None:
    made = steps(FULL)
    assert [(step.name, step.user, step.cwd) for step in made] == [
        ("directories", "root", "/"),
        ("apt: jq", "root", "/"),
        ("pip: httpx==0.28.1", "user", "/"),
        ("npm: pnpm@10", "user", "/"),
        ("files", "root", "/"),
        ("script 1: make all", "user", "/workspace"),
        ("script 2: ldconfig", "root", "/workspace"),
    ]
    assert made[-1].env["MODE"] == "dev"
    assert made[-1].env["TEMPLATE_VERSION"] == "1"


def test_a_script_ends_at_the_first_line_that_fails() -> None:
    script = steps(Template(name="a", scripts=Scripts(build=(Command("false\ntrue"),))))[-1].run
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 1


def test_the_python_template_refuses_another_python_than_its_own() -> None:
    step = steps(dataclasses.replace(resolve("python"), version="2.7"))[-1]
    done = subprocess.run(
        ["sh", "-c", step.run],
        env={**os.environ, "TEMPLATE_VERSION": "2.7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"this machine packages Python 3\.\d+, not 2\.7\n", done.stderr)


def test_package_names_are_quoted_for_the_shell() -> None:
    made = steps(Template(name="a", packages=Packages(pip=("uvicorn[standard]>=0.3; python_version>'3'",))))
    assert made[1].run.endswith(""" 'uvicorn[standard]>=0.3; python_version>'"'"'3'"'"''""")


def test_long_lists_of_packages_have_short_names() -> None:
    assert len(steps(Template(name="a", packages=Packages(apt=("libexample-dev",) * 20)))[1].name) == 60


def test_files_belong_to_the_user_where_the_user_works_and_to_root_elsewhere() -> None:
    with tarfile.open(fileobj=io.BytesIO(next(step.stdin for step in steps(FULL) if step.name == "files"))) as tar:
        found = {entry.name: (entry.uid, entry.mode, entry.isdir()) for entry in tar}
    assert found == {
        "etc/motd": (0, 0o644, False),
        "workspace/run.sh": (1000, 0o755, False),
        "workspace/src": (1000, 0o755, True),
        "workspace/src/deep": (1000, 0o755, True),
        "workspace/src/deep/a.txt": (1000, 0o644, False),
    }


def test_what_packages_bring_is_found_and_the_own_environment_has_the_last_word() -> None:
    env = environment(FULL)
    assert env["PATH"].startswith("/opt/python/bin:/opt/npm/bin:")
    assert (env["VIRTUAL_ENV"], env["NPM_CONFIG_PREFIX"]) == ("/opt/python", "/opt/npm")
    assert environment(Template(name="a", env={"PATH": "/bin"}))["PATH"] == "/bin"


CHANGES: list[dict[str, Any]] = [
    {"version": "2"},
    {"packages": Packages(apt=("jq", "curl"))},
    {"files": {**FULL.files, "run.sh": File(b"#!/bin/sh\n", 0o700)}},
    {"files": {**FULL.files, "run.sh": File(b"#!/bin/bash\n", 0o755)}},
    {"files": {**FULL.files, "run.sh": File(b"#!/bin/sh\n", 0o755, "root")}},
    {"env": {"MODE": "prod"}},
    {"workdir": "/srv/app"},
    {"user": "root"},
    {"scripts": Scripts(build=(Command("make all"),))},
    {"scripts": Scripts(build=(Command("make all"), Command("\n  ldconfig\n")))},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_the_digest_changes_with_what_decides_the_result(change: dict[str, Any]) -> None:
    assert digest(dataclasses.replace(FULL, **change), "base") != digest(FULL, "base")


def test_the_digest_changes_with_the_base() -> None:
    assert digest(FULL, "base") != digest(FULL, "other")


def test_the_digest_stays_with_what_only_runs_later_or_is_only_told() -> None:
    later = dataclasses.replace(
        FULL,
        name="other",
        description="text",
        ports=(1,),
        aliases=("x",),
        resources=Resources(cpu=1),
        files=dict(reversed(FULL.files.items())),
        scripts=Scripts(build=FULL.scripts.build, post_create=(Command("x"),), post_start=(Command("y"),)),
    )
    assert digest(later, "base") == digest(FULL, "base")
