"""Builds the native programs into every wheel. They are static: one architecture, any Python 3, any Linux."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = ("x86_64", "aarch64")
PROGRAMS = ("agent", "launcher", "dns", "seccomp.bpf", "libsystemd.so.0")
PAGE = Path("src/skerry/server/static/docs")


class NativeWheel(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what the wheel lacks. If that is impossible, ends the build with one sentence that says why."""
        root = Path(self.root)
        self._build(root)
        if version != "editable":
            self._fetch_page(root)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def _build(self, root: Path) -> None:
        if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
            here = f"{platform.system()} on {platform.machine()}"
            self.app.abort(f"skerry: its programs need Linux on {' or '.join(ARCHITECTURES)}; this is {here}.")
        missing = missing_tools()
        if missing:
            names = " and ".join(missing)
            verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            packages = " ".join(dict.fromkeys(missing.values()))
            self.app.abort(
                f"skerry: its native programs cannot be built because {names} {verb} missing; "
                f"install {them} (on Debian or Ubuntu: apt-get install {packages}) and run this again."
            )
        if importlib.util.find_spec("pyseccomp") is None:  # a requirement of the build, so only there without isolation
            self.app.abort("skerry: the Python package pyseccomp is missing; run this without --no-build-isolation.")
        command = ["make", f"-j{os.cpu_count() or 1}", "programs", f"PYTHON={sys.executable}"]
        done = _run(command, cwd=root)
        if done.returncode or not all((root / "src/skerry/_bin" / name).is_file() for name in PROGRAMS):
            said = done.stdout.strip()
            self.app.abort(f"{said}\nskerry: its native programs cannot be built; see the output of `make` above.")

    def _fetch_page(self, root: Path) -> None:
        """Fetch the server's API page from a package that is locked by hash; a wheel works without it."""
        if (root / PAGE / "swagger-ui-bundle.js").is_file():
            return
        with tempfile.TemporaryDirectory() as there:
            # -I: the environment that pip builds in hides pip itself.
            command = [
                sys.executable,
                "-I",
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--require-hashes",
                "-d",
                there,
            ]
            command += ["-r", str(root / "requirements-page.txt")]
            done = _run(command)
            if done.returncode:
                said = done.stdout.strip()
                self.app.display_warning(
                    f"{said}\nskerry: the API page cannot be fetched; the server in this wheel does not have that page."
                )
                return
            subprocess.run([sys.executable, root / "tools/fetch_page.py", there, root / PAGE], check=True)


def missing_tools() -> dict[str, str]:
    """What the build needs and does not find: each name with the Debian package that has it."""
    missing = {}
    for variable, program, package in (
        (None, "make", "make"),
        ("CC", "gcc", "gcc"),
        ("MUSL", "musl-gcc", "musl-tools"),
    ):
        program = (variable and os.environ.get(variable)) or program
        if shutil.which(program.split()[0]) is None:
            missing[program] = package
    if not Path("/usr/include/linux/openat2.h").exists():
        missing["the kernel's headers (linux/openat2.h)"] = "libc6-dev"
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        missing["libseccomp"] = "libseccomp2"
    return missing


def _run(command: list[str], *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
