"""`skerry template`, and --template, --image and --source of create and run."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Skerry
from tests.cli.pty import Terminal
from tests.templates.archives import docker_archive, file, layer

YAML = """
name: {name}
base: host
description: For a test.
ports: [8123]
files:
  hello.txt: hello
scripts:
  build: echo from the build; {build}
"""


@pytest.fixture
def project(tmp_path: Path, skerry: Skerry) -> Iterator[Path]:
    """A directory with a template.yaml; what was built of it is gone after the test."""
    write(tmp_path, "touch made")
    yield tmp_path
    skerry("template", "rm", "cli-made")


def write(directory: Path, build: str, name: str = "cli-made") -> None:
    (directory / "template.yaml").write_text(YAML.format(name=name, build=build))


@pytest.mark.usefixtures("nothing_left")
def test_build_streams_what_the_steps_write_and_prints_the_name(skerry: Skerry, project: Path) -> None:
    built = skerry("template", "build", str(project))
    assert (built.code, built.text) == (0, "cli-made:1\n"), built.err
    assert "cli-made:1: step 3 of 3: script 1: echo from the build; touch made\n" in built.err
    assert "\nfrom the build\n" in built.err
    again = skerry("template", "build", str(project / "template.yaml"), "-o", "json")
    assert (again.code, again.err) == (0, "")
    assert (again.json["name"], again.json["built"], again.json["ports"]) == ("cli-made", True, [8123])


@pytest.mark.usefixtures("nothing_left")
def test_run_and_create_take_a_template(skerry: Skerry, project: Path) -> None:
    skerry("template", "build", str(project))
    done = skerry("run", "--template", "cli-made", "--", "cat", "hello.txt")
    assert (done.code, done.text, done.err) == (0, "hello", "")
    made = skerry("create", "-T", "cli-made:1")
    sandbox_id = made.text.strip()
    assert skerry("info", sandbox_id, "-o", "json").json["template"] == "cli-made:1"
    in_use = skerry("template", "rm", "cli-made")
    assert (in_use.code, "(CONFLICT)" in in_use.err) == (1, True)
    assert skerry("rm", sandbox_id).code == 0


@pytest.mark.usefixtures("nothing_left")
def test_a_failed_step_is_named(skerry: Skerry, project: Path) -> None:
    write(project, "echo why not >&2; exit 5")
    done = skerry("template", "build", str(project))
    assert (done.code, done.text) == (1, "")
    error = done.err.splitlines()[-2]
    assert error.startswith("error: template cli-made:1: the step 'script 1: echo from the build; echo why not")
    assert error.endswith("exited with 5: why not (TEMPLATE_BUILD_FAILED)")
    assert skerry("template", "build", str(project), "-o", "json").error["code"] == "TEMPLATE_BUILD_FAILED"


def test_a_build_that_takes_too_long_ends(skerry: Skerry, project: Path) -> None:
    write(project, "sleep 1000")
    done = skerry("template", "build", "--timeout", "2", str(project))
    assert (done.code, "ran out of time" in done.err) == (1, True)


def test_on_a_terminal_there_is_a_bar(skerry: Skerry, project: Path) -> None:
    with Terminal("template", "build", str(project)) as terminal:
        assert terminal.finish() == 0
        assert b"from the build\r\n" in terminal.output
        assert b"3/3" in terminal.output
        assert terminal.output.rstrip().endswith(b"cli-made:1")


def test_ls_and_show_have_what_is_built_and_what_could_be(skerry: Skerry, project: Path) -> None:
    skerry("template", "build", str(project))
    header, *rows = skerry("template", "ls").text.splitlines()
    assert header.split() == ["NAME", "VERSION", "BUILT", "SIZE", "PORTS", "DESCRIPTION"]
    assert [row.split()[0] for row in rows] == sorted(row.split()[0] for row in rows)
    assert next(row for row in rows if row.startswith("cli-made ")).rstrip().endswith("For a test.")
    listed = {info["name"]: info for info in skerry("template", "ls", "-o", "json").json}
    assert listed["cli-made"]["built"]
    assert not listed["nextjs"]["built"]
    assert "ports:       8123\n" in skerry("template", "show", "cli-made").text
    assert skerry("template", "show", "nodejs", "-o", "json").json["name"] == "node"


def test_an_unknown_template_is_an_error_with_the_nearest(skerry: Skerry) -> None:
    for command in (("run", "-T", "pyton", "--", "true"), ("template", "show", "pyton"), ("template", "rm", "pyton")):
        done = skerry(*command)
        assert done.code == (125 if command[0] == "run" else 1)
        assert "(TEMPLATE_NOT_FOUND)" in done.err
        assert "did you mean 'python'?" in done.err


@pytest.mark.usefixtures("nothing_left")
def test_force_builds_anew_while_a_sandbox_has_the_old_one(skerry: Skerry, project: Path) -> None:
    write(project, "date +%s%N >stamp")
    first = skerry("template", "build", str(project), "-o", "json").json
    sandbox_id = skerry("create", "-T", "cli-made").text.strip()
    before = skerry("exec", sandbox_id, "--", "cat", "stamp").text
    forced = skerry("template", "build", "--force", str(project))
    assert (forced.code, forced.text, "step 3 of 3" in forced.err) == (0, "cli-made:1\n", True), forced.err
    assert skerry("template", "show", "cli-made", "-o", "json").json["digest"] != first["digest"]
    assert skerry("exec", sandbox_id, "--", "cat", "stamp").text == before
    assert skerry("run", "-T", "cli-made", "--", "cat", "stamp").text != before
    assert skerry("rm", sandbox_id).code == 0


def test_a_name_that_is_taken_is_refused_with_a_hint(skerry: Skerry, project: Path) -> None:
    write(project, "true", name="node20")
    done = skerry("template", "build", str(project))
    assert (done.code, "(INVALID_ARGUMENT)" in done.err, "choose another" in done.err) == (1, True, True), done.err
    assert "node" in skerry("template", "show", "node20").text


def test_a_bad_file_is_told_with_its_line(skerry: Skerry, tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("name: x\nbase: host\nports: [99999]\n")
    done = skerry("template", "build", str(tmp_path))
    assert (done.code, "line 3" in done.err) == (1, True), done.err


@pytest.mark.usefixtures("nothing_left")
def test_an_image_is_built_and_used(skerry: Skerry, tmp_path: Path) -> None:
    image = docker_archive(tmp_path / "image.tar", layer(file("etc/motd", b"welcome")))
    try:
        assert skerry("template", "build", "--image", str(image), "--name", "cli-image:7").text == "cli-image:7\n"
        made = skerry("create", "--image", str(image)).text.strip()
        assert skerry("cat", f"{made}:/etc/motd").out == b"welcome"
        skerry("rm", made)
    finally:
        built = [info for info in skerry("template", "ls", "-o", "json").json if info["name"] == "image"]
        removed = skerry("template", "rm", "cli-image", *(f"image:{info['version']}" for info in built))
        assert removed.code == 0, removed.err


@pytest.mark.usefixtures("nothing_left")
def test_a_source_fills_the_directory(skerry: Skerry, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("content")
    with tarfile.open(tmp_path / "tree.tgz", "w:gz") as tar:
        tar.add(tmp_path / "data", "data")
    done = skerry("run", "--source", str(tmp_path / "tree.tgz"), "--", "cat", "data")
    assert (done.code, done.text) == (0, "content")
    refused = skerry("run", "--source", "https://server.invalid/x.git", "--", "true")
    assert (refused.code, "network" in refused.err) == (125, True)
