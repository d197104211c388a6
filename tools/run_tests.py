"""Runs the tests: several at a time, each worker in its own namespaces, then alone those that need the whole machine.

python tools/run_tests.py [--all] [--record] [PYTEST ARGUMENT …]

Ten random mutants run beside the second part. At most three failed tests are run again, alone; the end of the output
names each of them, since it asks too much of a busy machine. `--all` adds the tests marked `long` and writes
tests/results/test-all.json. `--record` writes tests/timings.json, by which tests are ordered and kept to a budget.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4
FORGIVEN = 3
MUTANTS = 10
BUDGET = 11 * 60.0
"""Seconds that `make test` may take on 2 cores after set-up; a longer run says so."""
TIMINGS = ROOT / "tests/timings.json"
RESULT = ROOT / "tests/results/test-all.json"
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


@dataclass
class Part:
    """One run of pytest, as tests/conftest.py reported it."""

    name: str
    seconds: float
    code: int
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    created: int = 0
    durations: dict[str, float] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether more went wrong than failed tests: a crash, a skipped test, a sandbox left behind."""
        return bool(self.complaints) or self.code not in (0, 1) or (self.code == 1 and not self.failed)


def run_part(name: str, *arguments: str) -> Part:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        print(f"\n\033[1m{name}\033[0m", flush=True)
        env = {**os.environ, "SKERRY_TEST_REPORT": str(report)}
        code = subprocess.run([*PYTEST, *arguments], cwd=ROOT, env=env).returncode
        found = json.loads(report.read_text()) if report.exists() else {}
    if code == 5:  # no test was selected, as by -k
        code = 0
    return Part(name, time.monotonic() - started, code, **found)


class Mutants:
    """Ten random mutants in a second process; prints their seed."""

    def __init__(self) -> None:
        self.seed = int(os.environ.get("SKERRY_TEST_SEED", random.randrange(1 << 30)))
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it is read when the process has ended
        command = [sys.executable, str(ROOT / "tests/mutants/run.py"), f"--random={MUTANTS}", f"--seed={self.seed}"]
        self._running = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT)

    def interrupt(self) -> None:
        """End them as Ctrl-C does, so that they remove their copy of the tree."""
        self._running.send_signal(signal.SIGINT)
        self._running.wait()

    def caught(self) -> bool:
        code = self._running.wait()
        self._log.seek(0)
        print(f"\n\033[1mmutants, seed {self.seed}\033[0m\n{self._log.read()}", flush=True)
        return code == 0


def by_module(part: Part) -> dict[str, float]:
    """Seconds by module."""
    seconds: dict[str, float] = {}
    for name, duration in part.durations.items():
        module = name.partition("::")[0]
        seconds[module] = seconds.get(module, 0.0) + duration
    return seconds


def show(parts: list[Part], again: Part | None, seconds: float) -> None:
    durations = {name: duration for part in parts for name, duration in part.durations.items()}
    print("\n\033[1mslowest tests\033[0m")
    for name, duration in sorted(durations.items(), key=lambda item: -item[1])[:10]:
        print(f"  {duration:6.1f} s  {name}")
    print()
    for part in parts:
        print(f"{part.passed:5} passed in {part.seconds:4.0f} s, {part.created} sandboxes: {part.name}")
    if again is not None:
        mended = sorted(set(again.durations) - set(again.failed))
        if mended:
            print("\033[33mfailed beside other tests but passed alone; fix them:\033[0m")
        for name in mended:
            print(f"  {name}")
        for name in again.failed:
            print(f"\033[31mfailed again, alone: {name}\033[0m")
    over = "" if seconds <= BUDGET else f"; \033[33mthe budget is {BUDGET / 60:.0f} minutes\033[0m"
    print(f"{len(again.durations) if again else 0} run again; {seconds / 60:.1f} minutes in all{over}", flush=True)


def record(parts: list[Part]) -> None:
    seconds = {name: value for part in parts for name, value in by_module(part).items()}
    TIMINGS.write_text(json.dumps({name: round(seconds[name], 1) for name in sorted(seconds)}, indent=0) + "\n")


def write_result(parts: list[Part], again: Part | None, *, good: bool, seconds: float) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout
    RESULT.parent.mkdir(exist_ok=True)
    result = {
        "commit": commit + ("+changes" if changed.strip() else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "good": good,
        "passed": sum(part.passed for part in parts),
        "again": sorted(again.durations) if again else [],
        "seconds": round(seconds),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="run also the tests that are too slow for every commit")
    parser.add_argument("--record", action="store_true", help="write tests/timings.json")
    own, given = parser.parse_known_args()
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts with &
    os.environ.setdefault("SKERRY_REQUIRE_REAL", "1")
    if own.all:
        os.environ["SKERRY_TEST_ALL"] = "1"
    workers = f"{WORKERS}*popen//python={ROOT / 'tools/test_worker.sh'}"
    parts = [run_part("several at a time", "-m", "not serial", "--dist=loadscope", f"--tx={workers}", *given)]
    mutants = None if given else Mutants()
    try:
        parts.append(run_part("alone", "-m", "serial", *given))
    except BaseException:
        if mutants is not None:
            mutants.interrupt()
        raise
    good = mutants is None or mutants.caught()
    failed = [name for part in parts for name in part.failed]
    again = None
    if any(part.broken for part in parts) or len(failed) > FORGIVEN:
        good = False
    elif failed:
        os.environ["SKERRY_REQUIRE_REAL"] = "again"
        again = run_part(f"{len(failed)} failed; once more, alone", *failed)
        good = good and again.code == 0
    seconds = time.monotonic() - started
    for part in parts:
        for complaint in part.complaints:
            print(f"\033[31merror: {complaint}\033[0m")
    show(parts, again, seconds)
    if own.record:
        record(parts)
    if own.all:
        write_result(parts, again, good=good, seconds=seconds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
