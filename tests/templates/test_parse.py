"""`template.yaml`: everything it can say is read, and what is wrong is named with its key and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.core.errors import InvalidArgument, Unsupported
from skerry.core.models import Resources
from skerry.templates import Command, File, Packages, load, parse_text

FULL = """\
name: shop
version: 3.10
description: |
  A shop.
base: node:20
packages:
  apt: [jq]
  pip: ["httpx==0.28.1"]
  npm: [pnpm@10]
files:
  a.txt: hello
  bin/run: {content: "#!/bin/sh", mode: 0755}
  /etc/motd: {content: hi, owner: root}
  web: {source: site}
  one.css: {source: site/style.css, mode: "600"}
env:
  PORT: 3000
  DEBUG: true
  EMPTY:
workdir: /workspace/app
user: root
ports: [3000, 9229]
scripts:
  build: [make, {run: ldconfig, user: root}]
  postCreate: ./seed
  postStart: [npm run dev]
resources: {cpu: 1.5, memory: 2GB, disk: 1000000, pids: 100}
aliases: [store]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "site/js").mkdir(parents=True)
    (tmp_path / "site/node_modules").mkdir()
    (tmp_path / "site/node_modules/left-out.js").write_text("")
    (tmp_path / "site/style.css").write_text("a {}")
    (tmp_path / "site/js/go").write_bytes(b"\xff")
    (tmp_path / "site/js/go").chmod(0o755)
    (tmp_path / "template.yaml").write_text(FULL)
    return tmp_path


def test_everything_it_can_say_is_read(directory: Path) -> None:
    template = load(directory)
    assert template == load(directory / "template.yaml")
    assert (template.reference, template.description, template.base) == ("shop:3.10", "A shop.", "node:20")
    assert template.packages == Packages(apt=("jq",), pip=("httpx==0.28.1",), npm=("pnpm@10",))
    assert template.files == {
        "a.txt": File("hello"),
        "bin/run": File("#!/bin/sh", 0o755),
        "/etc/motd": File("hi", 0o644, "root"),
        "web/style.css": File(b"a {}"),
        "web/js/go": File(b"\xff", 0o755),
        "one.css": File(b"a {}", 0o600),
    }
    assert template.env == {"PORT": "3000", "DEBUG": "true", "EMPTY": ""}
    assert (template.workdir, template.user, template.ports) == ("/workspace/app", "root", (3000, 9229))
    assert template.scripts.build == (Command("make"), Command("ldconfig", "root"))
    assert template.scripts.post_create == (Command("./seed"),)
    assert template.scripts.post_start == (Command("npm run dev"),)
    assert template.resources == Resources(cpu=1.5, memory=2 * 10**9, disk=10**6, pids=100)
    assert template.aliases == ("store",)


def test_a_name_is_enough() -> None:
    template = parse_text("name: a")
    assert (template.base, template.workdir, template.user, template.version) == ("debian", "/workspace", "user", "1")


@pytest.mark.parametrize(
    ("base", "expected"),
    [("null", None), ("host", "host"), ("python:3.11", "python:3.11"), ("{image: 'app:1'}", "image:app:1")],
)
def test_bases(base: str, expected: str | None) -> None:
    assert parse_text(f"name: a\nbase: {base}").base == expected


def test_a_stack_of_services_is_refused_as_not_supported() -> None:
    with pytest.raises(Unsupported, match="list of services") as caught:
        parse_text("name: a\nbase: [node:20, postgres:15]")
    assert caught.value.option == "base"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("name: a\nport: [1]", 2, "port: there is no such key"),
        ("name: a\nscripts:\n  post_create: x", 3, "scripts.post_create: there is no such key"),
        ("name: a\npackages: {pipp: [x]}", 2, "packages.pipp: there is no such key"),
        ("version: 1", 1, "needs a name"),
        ("name: Bad Name", 1, "name: 'Bad Name' is not a name"),
        ("name: sb-x", 1, "name: 'sb-x'"),
        ("name: [a]", 1, "name: must be text, not a list"),
        ("- a", 1, "must be a mapping, not a list"),
        ("name: a\nname: b", 2, "name: is there twice"),
        ("name: a\nports: 80", 2, "ports: must be a list, not text"),
        ("name: a\nports:\n  - 80\n  - http", 4, "ports[1]: must be a whole number, not 'http'"),
        ("name: a\nports: [70000]", 2, "ports: 70000 is not a port"),
        ("name: a\nports: [-1]", 2, "ports[0]: must be a whole number"),
        ("name: a\npackages:\n  apt: jq", 3, "packages.apt: must be a list"),
        ("name: a\npackages:\n  apt: ['-y']", 3, "packages.apt: '-y' is not a package"),
        ("name: a\nenv: {A B: c}", 2, "env: 'A B'"),
        ("name: a\nenv: {A: [c]}", 2, "env.A: must be text"),
        ("name: a\nworkdir: app", 2, "workdir must lead"),
        ("name: a\nuser: A", 2, "user: 'A'"),
        ("name: a\nbase: a", 2, "base: the template 'a' cannot be its own base"),
        ("name: a\nbase: {img: x}", 2, "base.img: there is no such key"),
        ("name: a\n\naliases: [B]", 3, "aliases[0]: 'B' is not a name"),
        ("name: a\nscripts: {build: [{user: root}]}", 2, "scripts.build[0]: needs `run:`"),
        ("name: a\nscripts: {build: ['']}", 2, "scripts.build[0]: a script must be text"),
        ("name: a\nresources: {cpu: many}", 2, "resources.cpu: must be a number of cores"),
        ("name: a\nresources: {cpu: 0}", 2, "resources.cpu: "),
        ("name: a\nresources: {memory: 2XB}", 2, "resources.memory: "),
        ("name: a\nresources: {gpu: 1}", 2, "resources.gpu: there is no such key"),
        ("name: a\nfiles: {../x: y}", 2, "files: '../x'"),
        ("name: a\nfiles: {/sys/x: y}", 2, "files: '/sys/x'"),
        ("name: a\nfiles:\n  x: {mode: 0644}", 3, "files.x: needs either"),
        ("name: a\nfiles:\n  x: {content: a, source: b}", 3, "files.x: needs either"),
        ("name: a\nfiles:\n  x: {content: a, mode: rwx}", 3, "files.x.mode: 'rwx'"),
        ("name: a\nfiles:\n  x: {content: a, mode: 0799}", 3, "files.x.mode: '0799'"),
        ("name: a\nfiles:\n  x: {source: y}", 3, "files.x.source: a text on its own"),
        ("name: &n a\nbase: *n", 2, "aliases"),
        ("name: a\nenv:\n  A: !!binary aGk=", 3, "tag"),
        ("name: a\n\npackages: !!python/object:os.system {}", 3, "tag"),
        (f"name: a\nports: [{'9' * 5000}]", 2, "ports[0]: "),
        (f"name: a\nresources: {{pids: {'9' * 5000}}}", 2, "resources.pids: "),
        ("name: a\nresources: {pids: 0}", 2, "resources.pids: "),
        ("name: a\nresources: {cpu: inf}", 2, "resources.cpu: "),
        ("name: a\nresources: {cpu: nan}", 2, "resources.cpu: "),
        (f"name: a\nresources: {{memory: {'9' * 5000}}}", 2, "resources.memory: "),
        (f"name: a\nresources: {{disk: {'9' * 500}TB}}", 2, "resources.disk: "),
        ("name: a\nbase: host\npackages:\n  apt: [jq]", 4, "packages.apt: the base 'host'"),
        ("name: a\naliases: [b]\nbase: b", 3, "cannot be its own base"),
        ("name: a\nbase: image", 2, "base: "),
        ("name: a\nbase: 'image:'", 2, "base: "),
        ("name: a\nbase: ''", 2, "base: "),
        ("name: a\nfiles:\n  x: y\n  x/z: y", 4, "files.x/z: "),
        ("name: image", 1, "name: 'image'"),
        ("name: a\n  b: c", 2, "not YAML"),
        ("name: a\nenv: {A: 'x", 2, "not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_line(text: str, line: int, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_text(text, source="x.yaml")
    assert str(caught.value).startswith(f"x.yaml, line {line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing", "\x07", "!!python/object:os.system x"])
def test_what_is_no_template_at_all_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_text(text)


def test_what_is_nested_too_deep_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgument, match="nested deeper than 16 levels"):
        parse_text("[" * 5000)


@pytest.mark.parametrize(
    ("key", "near"), [("port", "ports"), ("Name", "name"), ("work_dir", "workdir"), ("enviroment", "env")]
)
def test_an_unknown_key_names_the_nearest_or_all(key: str, near: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_text(f"name: a\n{key}: x")
    assert near in caught.value.hint


@pytest.mark.parametrize("source", ["../secret", "/etc/passwd", "link", "missing", "fifo", "empty"])
def test_files_are_taken_from_the_templates_directory_only(source: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    inside = tmp_path / "inside"
    (inside / "empty").mkdir(parents=True)
    (inside / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(inside / "fifo")
    (inside / "template.yaml").write_text(f"name: a\nfiles:\n  x: {{source: {source}}}\n")
    with pytest.raises(InvalidArgument, match=r"files\.x"):
        load(inside)


def test_a_link_inside_a_directory_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/passwd").symlink_to("/etc/passwd")
    (tmp_path / "template.yaml").write_text("name: a\nfiles:\n  .: {source: site}\n")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        load(tmp_path)


def test_a_directory_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a").write_text("a")
    (tmp_path / "site/etc").symlink_to("/etc")
    (tmp_path / "template.yaml").write_text("name: a\nfiles:\n  .: {source: site}\n")
    with pytest.raises(InvalidArgument, match=r"line 3: files\.\.: etc is not a regular file"):
        load(tmp_path)


@pytest.mark.parametrize("source", ["large", "."])
def test_files_that_are_too_large_are_refused_unread(tmp_path: Path, source: str) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(100 << 30)
    (tmp_path / "template.yaml").write_text(f"name: a\nfiles:\n  x: {{source: {source}}}\n")
    with pytest.raises(InvalidArgument, match=r"line 3: files\.x\.source: more than"):
        load(tmp_path)


@pytest.mark.timeout(20)
def test_what_is_no_file_or_too_large_is_no_template(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "template.yaml")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidArgument, match="regular file"):
            load(path)
    with open(tmp_path / "large.yaml", "wb") as file:
        file.truncate(100 << 30)
    with pytest.raises(InvalidArgument, match="larger than"):
        load(tmp_path / "large.yaml")


def test_an_image_beside_the_template_is_its_base(tmp_path: Path) -> None:
    (tmp_path / "image.tar").touch()
    (tmp_path / "template.yaml").write_text("name: a\nbase: {image: image.tar}\n")
    assert load(tmp_path).base == f"image:{tmp_path / 'image.tar'}"


def test_the_same_file_twice_is_refused(directory: Path) -> None:
    text = "name: a\nfiles:\n  web: {source: site}\n  web/style.css: x\n"
    with pytest.raises(InvalidArgument, match=r"line 4: files\.web/style\.css: web/style\.css is there twice"):
        parse_text(text, directory=directory)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"template\.yaml cannot be read"):
        load(tmp_path)
    (tmp_path / "template.yaml").write_bytes(b"name: \xff")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load(tmp_path)


def test_the_example_of_the_documentation_is_a_template(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/templates.md").read_text()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/package.json").write_text("{}")
    (tmp_path / "template.yaml").write_text(page.partition("```yaml\n")[2].partition("```\n")[0])
    template = load(tmp_path)
    assert (template.reference, template.ports, len(template.files)) == ("shop:1.2", (3000, 9229), 3)
    assert template.files["bin/seed"] == File("#!/bin/sh\nsqlite3 shop.db <schema.sql\n", 0o755)
