"""Installing is honest: pip makes a complete wheel of a clean tree, or says in one sentence what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import unmount_below

ROOT = Path(__file__).parents[1]
PARTS = ("agent", "dns", "launcher", "libsystemd.so.0", "seccomp.bpf")


@pytest.fixture
def clean_tree(tmp_path: Path) -> Path:
    """What a clone would have: nothing that is built."""
    there = tmp_path / "clone"
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, there / name)
    assert not (there / "src/skerry/_bin").exists()
    return there


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "h"
    unmount_below(tmp_path)


def pip_wheel(tree: Path, into: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As `pip wheel .` does it, but with the build's requirements of this environment, so that no index is asked."""
    words = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(into), str(tree)]
    command = [sys.executable, *words]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=100, check=False)


def other_environment(there: Path, wheel: Path) -> Path:
    """The `skerry` of a new environment that holds this wheel, and what Skerry needs from this environment."""
    venv.create(there, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(there)}))
    command = [sys.executable, "-m", "pip", f"--python={there}", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, timeout=100)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return there / "bin/skerry"


def test_a_wheel_of_a_clean_tree_works_in_another_environment(clean_tree: Path, home: Path, tmp_path: Path) -> None:
    static = ROOT / "src/skerry/server/static"  # fetched by `make setup`; here no index is asked
    shutil.copytree(static, clean_tree / "src/skerry/server/static")
    built = pip_wheel(clean_tree, tmp_path / "dist")
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tmp_path / "dist").glob("skerry-*-py3-none-linux_*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {f"skerry/_bin/{name}" for name in PARTS} <= set(archive.namelist())
    skerry = str(other_environment(tmp_path / "v", wheel))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SKERRY_", "PYTHON"))}
    env |= {"SKERRY_HOME": str(home), "SKERRY_LOGIN": str(tmp_path / "login.json"), "SKERRY_POOL_SIZE": "600MB"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [skerry, *words], env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import skerry; print(skerry.__file__)"
    used = subprocess.run(
        [Path(skerry).with_name("python"), "-c", where], cwd="/", capture_output=True, text=True, check=True
    )
    assert used.stdout.startswith(str(tmp_path / "v"))
    run("run", "--", "true")
    told = run("up", "-dp", "0")
    try:
        url = re.search(r"serves at (\S+)", told)[1]  # type: ignore[index]
        for path in ("/health", "/docs", "/docs/swagger-ui-bundle.js"):
            with urllib.request.urlopen(url + path, timeout=10) as answer:
                assert answer.status == 200
    finally:
        run("down")


def test_a_build_without_a_compiler_says_what_is_missing_and_makes_no_wheel(clean_tree: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("make", "gcc"):
        (programs / program).symlink_to(str(shutil.which(program)))
    built = pip_wheel(clean_tree, tmp_path / "dist", PATH=str(programs))
    assert built.returncode != 0
    assert not list((tmp_path / "dist").glob("*.whl"))
    said = (
        "skerry: its native programs cannot be built because musl-gcc is missing; "
        "install it (on Debian or Ubuntu: apt-get install musl-tools) and run this again."
    )
    assert said in built.stdout + built.stderr
    assert "Traceback" not in built.stdout + built.stderr
