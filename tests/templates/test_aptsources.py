"""This machine's package sources, in both formats, and the recipe for a root that is made with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.core.errors import InvalidArgument, ProviderUnavailable
from skerry.templates import Command, File, Packages, Scripts, Template, bootstrap, digest, resolve, steps
from skerry.templates.aptsources import read

MAIN = "deb http://mirror.example/debian bookworm main\n"


def machine(root: Path, files: dict[str, str], *, codename: str = "bookworm") -> Path:
    system = {"etc/os-release": f'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME={codename}\n'}
    keys = {
        "usr/share/keyrings/archive.gpg": "A",
        "etc/apt/trusted.gpg.d/one.asc": "1",
        "etc/apt/trusted.gpg.d/two.gpg": "2",
    }
    for name, text in (system | keys | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_deb822_is_read(tmp_path: Path) -> None:
    text = """\
# the system's own
Types: deb deb-src
# a comment between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates sid
Components: main
 contrib
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: https://mirror.example/security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/archive.gpg
"""
    sources = read(machine(tmp_path, {"etc/apt/sources.list.d/debian.sources": text}))
    assert (sources.distribution, sources.suite) == ("debian", "bookworm")
    assert sources.files == {"/etc/apt/keyrings/archive.gpg": b"A"}
    assert (
        sources.text
        == """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /etc/apt/keyrings/archive.gpg

Types: deb
URIs: https://mirror.example/security
Suites: bookworm-security
Components: main
Signed-By: /etc/apt/keyrings/archive.gpg
"""
    )


def test_the_format_of_one_line_is_read(tmp_path: Path) -> None:
    text = f"""\
# deb http://commented.example/debian bookworm main
{MAIN}deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/archive.gpg] http://mirror.example/debian bookworm-updates main # here
"""
    sources = read(machine(tmp_path, {"etc/apt/sources.list": text}))
    first, second = sources.text.split("\n\n")
    assert "Suites: bookworm\n" in first
    assert "Signed-By: /etc/apt/keyrings/one.asc,/etc/apt/keyrings/two.gpg" in first
    assert "Suites: bookworm-updates\n" in second
    assert second.endswith("Signed-By: /etc/apt/keyrings/archive.gpg\n")


@pytest.mark.parametrize(
    "line",
    [
        "deb http://user:secret@other.example/debian bookworm main",
        "deb file:/srv/other.example bookworm main",
        "deb cdrom:[other.example]/ bookworm main",
        "deb http://other.example/debian bookworm stable",
        "deb http://other.example/debian trixie main",
        "deb http://other.example/debian bookworm-pgdg main",
        "deb http://other.example/flat ./",
    ],
)
def test_sources_that_a_sandbox_cannot_use_or_must_not_know_are_left_out(line: str, tmp_path: Path) -> None:
    sources = read(machine(tmp_path, {"etc/apt/sources.list": f"{MAIN}{line}\n"}))
    assert "mirror.example" in sources.text
    assert "other.example" not in sources.text
    with pytest.raises(ProviderUnavailable, match="bookworm"):
        read(machine(tmp_path, {"etc/apt/sources.list": f"{line}\n"}))


def test_what_is_switched_off_or_not_a_list_is_left_out(tmp_path: Path) -> None:
    off = "Enabled: no\nTypes: deb\nURIs: http://other.example\nSuites: bookworm\nComponents: main\n"
    files = {
        "sources.list": MAIN,
        "sources.list.d/a.sources": off,
        "sources.list.d/b.list.off": MAIN.replace("mirror", "other"),
    }
    assert "other" not in read(machine(tmp_path, {f"etc/apt/{name}": text for name, text in files.items()})).text


def test_a_key_written_into_the_entry_becomes_a_file(tmp_path: Path) -> None:
    text = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKwYBBAHaRw8B
 -----END PGP PUBLIC KEY BLOCK-----
"""
    sources = read(machine(tmp_path, {"etc/apt/sources.list.d/a.sources": text}))
    block = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEYCQjIxYJKwYBBAHaRw8B\n-----END PGP PUBLIC KEY BLOCK-----\n"
    assert sources.files == {"/etc/apt/keyrings/embedded.asc": block}


def test_two_keyrings_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    lines = "".join(
        f"deb [signed-by={path}] http://mirror.example/debian bookworm{suffix} main\n"
        for path, suffix in (("/usr/share/keyrings/archive.gpg", ""), ("/etc/apt/keyrings/archive.gpg", "-updates"))
    )
    sources = read(machine(tmp_path, {"etc/apt/sources.list": lines, "etc/apt/keyrings/archive.gpg": "B"}))
    assert sources.files == {"/etc/apt/keyrings/archive.gpg": b"A", "/etc/apt/keyrings/archive-2.gpg": b"B"}


def test_a_source_without_a_key_is_refused(tmp_path: Path) -> None:
    lines = "deb [signed-by=/usr/share/keyrings/gone.gpg] http://mirror.example/debian bookworm main\n"
    with pytest.raises(ProviderUnavailable, match="no key"):
        read(machine(tmp_path, {"etc/apt/sources.list": lines}))


@pytest.mark.parametrize(("setting", "taken"), [("false", True), ("true", False)])
def test_old_indexes_are_taken_where_the_machine_takes_them(setting: str, taken: bool, tmp_path: Path) -> None:
    files = {"etc/apt/sources.list": MAIN, "etc/apt/apt.conf.d/99x": f'Acquire::Check-Valid-Until "{setting}";\n'}
    assert ("Check-Valid-Until: no" in read(machine(tmp_path, files)).text) is taken


def test_a_machine_without_apt_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="no apt") as caught:
        read(tmp_path)
    assert "host" in caught.value.hint


def test_the_recipe_runs_on_the_machines_files_and_changes_with_its_sources(tmp_path: Path) -> None:
    sources = read(machine(tmp_path, {"etc/apt/sources.list": MAIN}))
    recipe = bootstrap.recipe(resolve("debian"), sources)
    assert recipe.base == "host"
    assert [step.name for step in steps(recipe)] == ["directories", "files", "script 1: bootstrap", "script 2: set up"]
    assert all(step.user == "root" for step in steps(recipe))
    other = read(machine(tmp_path, {"etc/apt/sources.list": MAIN.replace("mirror", "other")}))
    assert digest(recipe, "") != digest(bootstrap.recipe(resolve("debian"), other), "")


@pytest.mark.parametrize(
    "template",
    [
        Template(name="a"),
        Template(name="a", base=None, packages=Packages(pip=("x",))),
        Template(name="a", base=None, files={"x": File("")}),
        Template(name="a", base=None, scripts=Scripts(build=(Command("x"),))),
    ],
)
def test_a_root_without_a_base_has_apt_packages_only(template: Template, tmp_path: Path) -> None:
    sources = read(machine(tmp_path, {"etc/apt/sources.list": MAIN}))
    with pytest.raises(InvalidArgument):
        bootstrap.recipe(template, sources)
