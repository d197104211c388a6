"""Applies each mutant to a copy of the tree, runs the test that must catch it, and says which were not caught.

python tests/mutants/run.py [--only NAME] [--random N --seed S] [--list]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.conftest import SERIAL  # noqa: E402
from tests.mutants.catalogue import MUTANTS, Mutant  # noqa: E402

LIMIT = 300.0
HEAVY = tuple(f"tests/{path}" for path in SERIAL)
"""Tests that take all of the machine: `--random`, which runs beside others, leaves them out."""
OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh"]
"""What a broken launcher leaves mounted is seen by the test and goes with it; the machine never has it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    caught: bool
    why: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="NAME", action="append", help="just this one; may be given again")
    parser.add_argument(
        "--random", metavar="N", type=int, help="this many, whose tests are known to pass and need little"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not arguments.only or mutant.name in arguments.only]
    if not chosen:
        parser.error("no such mutant")
    if arguments.random:
        light = [mutant for mutant in chosen if not mutant.test.startswith(HEAVY)]
        chosen = random.Random(arguments.seed).sample(light, min(arguments.random, len(light)))
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name:45} {mutant.test}")
        return 0
    with tempfile.TemporaryDirectory(prefix="skm-", dir="/var/tmp") as folder:
        tree = _copy(Path(folder) / "tree")
        if not arguments.random and not _passes_unchanged(tree, chosen):
            return 1
        return _run_all(tree, chosen)


def _passes_unchanged(tree: Path, mutants: list[Mutant]) -> bool:
    print(f"{len(mutants)} mutants; first, every named test passes on the unchanged code", flush=True)
    if not _build(tree):
        print("error: the unchanged code does not build", file=sys.stderr)
        return False
    failed = _failures(tree, sorted({mutant.test for mutant in mutants}), limit=len(mutants) * LIMIT)
    if failed != []:
        print(f"error: fails on the unchanged code: {failed}", file=sys.stderr)
    return failed == []


def _run_all(tree: Path, mutants: list[Mutant]) -> int:
    survivors = [
        mutant for number, mutant in enumerate(mutants, 1) if not _told(tree, mutant, f"{number:3}/{len(mutants)}")
    ]
    # A busy machine can hide a fault from its test: each has a second chance, and that it took one is told.
    survivors = [mutant for mutant in survivors if not _told(tree, mutant, "again ")]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants were caught by their named test")
    return 1 if survivors else 0


def _told(tree: Path, mutant: Mutant, number: str) -> bool:
    """Whether it is caught, which is printed."""
    verdict = _try(tree, mutant)
    mark = "caught  " if verdict.caught else "SURVIVED"
    print(f"{number} {mark} {mutant.name:48} {verdict.seconds:5.1f} s  {verdict.why}", flush=True)
    return verdict.caught


def _copy(tree: Path) -> Path:
    """The files of the repository as they are now, and what is built, so that only what a mutant touches is rebuilt."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for built in ("agent/build", "launcher/build", "src/skerry/_bin"):
        if (ROOT / built).exists():
            shutil.copytree(ROOT / built, tree / built)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def _try(tree: Path, mutant: Mutant) -> Verdict:
    started = time.monotonic()
    path = tree / mutant.file
    original = path.read_bytes()
    text = original.decode()
    if text.count(mutant.old) != 1:
        return Verdict(False, f"its text is {text.count(mutant.old)} times in {mutant.file}", 0.0)
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        if not _build(tree):
            return Verdict(False, "it does not build, which proves nothing", time.monotonic() - started)
        failed = _failures(tree, [mutant.test], limit=LIMIT)
    finally:
        path.write_bytes(original)
        _build(tree)
        _sweep(tree)
    caught = failed is None or bool(failed)
    why = "the run had to be ended" if failed is None else failed[0] if failed else f"{mutant.test} passed"
    return Verdict(caught, why[:100], time.monotonic() - started)


def _build(tree: Path) -> bool:
    done = subprocess.run(["make", "native"], cwd=tree, capture_output=True, text=True)
    return done.returncode == 0


def _environment(tree: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SKERRY_", "PYTEST_", "SOAK"))}
    return clean | {"PYTHONPATH": str(tree / "src")}


def _failures(tree: Path, tests: list[str], *, limit: float) -> list[str] | None:
    """The tests that failed, with the reason's first line; None: the run did not end in time, or not by itself."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    homes = _homes(tree)
    homes.mkdir(exist_ok=True)
    command = [
        *OWN_MOUNTS,
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        *tests,
    ]
    # A session of its own: a broken agent or a hung test goes with everything it has started.
    with subprocess.Popen(
        command,
        cwd=tree,
        env=_environment(tree) | {"SKERRY_TEST_DIR": str(homes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as running:
        try:
            output, _ = running.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, 9)
            running.communicate()
            return None
    lines = output.decode(errors="replace").strip().splitlines()
    if not report.exists():  # pytest itself broke down afterwards, on what the mutant has left of the machine
        failed = [line for line in lines if "::" in line and (" FAILED" in line or " ERROR" in line)]
        if not failed:
            raise SystemExit(f"error: pytest could not run {tests}: " + " | ".join(lines[-5:]))
        return failed
    cases = ET.parse(report).getroot().iter("testcase")
    return [
        f"{case.get('name')}: {(problem.get('message') or '').strip().splitlines()[0] if problem.get('message') else ''}"
        for case in cases
        for problem in [*case.findall("failure"), *case.findall("error")]
    ]


def _homes(tree: Path) -> Path:
    """Where the tests keep their sandboxes, also those that a broken run did not remove."""
    return tree.parent / "h"


def _sweep(tree: Path) -> None:
    """With the code as it was again: what a broken one has left behind goes."""
    shutil.rmtree(_homes(tree), ignore_errors=True)
    code = "import asyncio; from skerry.providers.local import LocalProvider; asyncio.run(LocalProvider().sweep())"
    with tempfile.TemporaryDirectory(prefix="skm-", dir="/var/tmp") as home:
        env = _environment(tree) | {"SKERRY_HOME": home, "SKERRY_STORAGE": "directory"}  # nothing to unmount
        subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True)
    known = {link.readlink().name for link in Path("/run/skerry/slots").glob("*")}
    for group in Path("/sys/fs/cgroup").glob("**/skerry/sb-*"):
        if group.name not in known:
            with contextlib.suppress(OSError):  # one in use is somebody else's
                group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
