"""For every test: a SKERRY_HOME of its own, asyncio, and the promise that real sandboxes ran and none is left."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

REQUIRE_REAL = os.environ.get("SKERRY_REQUIRE_REAL", "")
"""Set by `make test`: a run with a test skipped fails, and with `1` also one without a real sandbox."""

ALL = bool(os.environ.get("SKERRY_TEST_ALL"))
"""Set by `make test-all`: tests marked `long` run too."""
REPORT = os.environ.get("SKERRY_TEST_REPORT")
"""Where tools/run_tests.py wants to read what happened."""

SERIAL = (
    "e2e",
    "providers/local/isolation/test_bombs.py",
    "providers/local/isolation/test_crashes.py",  # the machine's handler of crashes knows processes by their outer number
    "providers/local/isolation/test_memory.py",
)
"""Directories and modules whose tests take all of the machine: they run one at a time, after the others."""
TIMINGS = Path(__file__).with_name("timings.json")
"""Seconds by module, written by `tools/run_tests.py --record`."""

_created = 0
_skipped: list[str] = []
_complaints: list[str] = []
_leftovers: list[str] = []
_failed: list[str] = []
_passed: list[str] = []
_durations: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)  # of pytest-xdist: each has a home of its own beside the first
    if worker is None:
        run = Path(
            tempfile.mkdtemp(prefix="sk-", dir=os.environ.get("SKERRY_TEST_DIR", "/var/tmp"))
        )  # short: for sockets
        config.option.basetemp = config.option.basetemp or run / "tmp"  # runs side by side do not clean up each other
    else:
        run = Path(os.environ["SKERRY_HOME"]).parent
    home = run / ("home" if worker is None else worker["workerid"])
    home.mkdir(mode=0o700)
    os.environ["SKERRY_HOME"] = str(home)
    os.environ["SKERRY_LOGIN"] = str(run / "login.json")  # not that of who runs the tests
    os.environ |= {"SKERRY_DISK_KEY": "env:SKERRY_TEST_KEY", "SKERRY_TEST_KEY": "5e" * 32}  # no key of this machine
    _count_creates()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes the whole machine, leave out what is long, and begin with the modules that take longest."""
    here = Path(__file__).parent
    for item in items:
        path = str(item.path.relative_to(here))
        if path.startswith(SERIAL):
            item.add_marker("serial")
    if not ALL and not config.option.markexpr.startswith("soak"):
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            (left_out if item.get_closest_marker("long") and not _named(config, item) else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    seconds = json.loads(TIMINGS.read_text()) if TIMINGS.exists() else {}
    # The longest first, so that no worker is left with a long one when the others are done.
    items.sort(key=lambda item: -seconds.get(f"tests/{item.path.relative_to(here)}", 0.0))


def _named(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the command line asks for this one test."""
    return any("::" in argument and item.nodeid.startswith(argument) for argument in config.args)


def _count_creates() -> None:
    """Counts in this process; what a subprocess creates only adds to it."""
    from skerry.providers.local import LocalProvider

    create: Callable[..., Awaitable[Any]] = LocalProvider.create

    @functools.wraps(create)
    async def counted(*args: Any, **kwargs: Any) -> Any:
        global _created
        info = await create(*args, **kwargs)
        _created += 1
        return info

    LocalProvider.create = counted  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)
    _passed.extend([report.nodeid] if report.passed and report.when == "call" else [])
    _durations[report.nodeid] = _durations.get(report.nodeid, 0.0) + report.duration
    if report.skipped and not hasattr(report, "wasxfail") and "may_skip" not in report.keywords:
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A pytest-xdist worker ended: its count joins ours."""
    global _created
    output = getattr(node, "workeroutput", {})
    _created += output.get("created", 0)
    _leftovers.extend(output.get("leftovers", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workeroutput", None)
    left = _destroy_left()
    if left:
        _leftovers.append(f"the tests left {len(left)} sandboxes behind: {', '.join(left)}")
    if worker is not None:
        worker["created"] = _created
        worker["leftovers"] = _leftovers
        return
    if REQUIRE_REAL and not session.config.option.collectonly:
        if not _created and REQUIRE_REAL == "1":
            _complaints.append("no real sandbox ran, so this run proves nothing")
        if _skipped:
            _complaints.append("skipped without the mark may_skip: " + ", ".join(_skipped))
    if not _failed:  # a test that failed may have left its sandbox
        _complaints.extend(_leftovers)
    if REPORT:
        report = {
            "passed": len(_passed),
            "failed": _failed,
            "complaints": _complaints,
            "created": _created,
            "durations": _durations,
        }
        Path(REPORT).write_text(json.dumps(report))
    if _complaints and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _destroy_left() -> list[str]:
    if os.geteuid() != 0:
        return []  # nobody else can have made one
    from skerry.providers.local import LocalProvider

    async def destroy() -> list[str]:
        provider = LocalProvider()
        left = [info.id for info in await provider.list()]
        for sandbox_id in left:
            await provider.destroy(sandbox_id)
        return left

    return asyncio.run(destroy())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("sandboxes")
    terminalreporter.write_line(f"{_created} real sandboxes were created in the test processes")
    for complaint in _complaints:
        terminalreporter.write_line(f"error: {complaint}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        run = Path(os.environ["SKERRY_HOME"]).parent
        unmount_below(run)
        shutil.rmtree(run, ignore_errors=True)


def unmount_below(path: Path) -> None:
    """The storage pools of SKERRY_HOMEs under `path` stay mounted until somebody takes them away."""
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):  # what lies on another mount first
        place = line.split()[4]
        if place.startswith(f"{path}/"):
            end = time.monotonic() + 10
            while subprocess.run(["umount", place], check=False).returncode and time.monotonic() < end:
                time.sleep(0.1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def skerry_home() -> Path:
    """The directory all tests of this run share."""
    return Path(os.environ["SKERRY_HOME"])
