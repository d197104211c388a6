"""For every test: a SKERRY_HOME of its own, asyncio, and the promise that real sandboxes ran and none is left."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

REQUIRE_REAL = os.environ.get("SKERRY_REQUIRE_REAL", "")
"""Set by `make test`: a run with a test skipped fails, and with `1` also one without a real sandbox."""

ALONE = ("crash", "e2e", "isolation", "providers", "templates")
"""Directories whose tests count what the whole machine has, fill it, or take its time."""
BESIDE = ("templates/test_builtin.py",)
"""Modules in them that do not: they wait for networks and processes most of the time."""

QUIET = (
    *("agent", "archive/test_damage.py", "archive/test_hostile.py", "archive/test_interop.py", "archive/test_keys.py"),
    *("archive/test_round_trip.py", "bench", "conformance/test_suite.py", "fuzz", "http", "wire"),
)
"""Modules and directories that make no sandbox, no mount and no namespace, but for tests marked `counted`: the others may run
beside what counts those."""
LONG = ("templates", "server", "conformance", "cli")
"""Directories whose modules take long, the longest first."""

_created = 0
_skipped: list[str] = []
_complaints: list[str] = []
_failed: list[str] = []


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
    _count_creates()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs these one at a time, the others several at a time."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        if path.parts[0] in ALONE and str(path) not in BESIDE:
            item.add_marker("alone")
        elif not {str(path), path.parts[0]}.isdisjoint(QUIET) and not item.get_closest_marker("counted"):
            item.add_marker("quiet")
    # Those whose modules take longest begin, so that no worker is left with one when the others are done.
    rank = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(here).parts[0], len(LONG)))


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
    _complaints.extend(output.get("complaints", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workeroutput", None)
    left = _destroy_left()
    if left:
        _complaints.append(f"the tests left {len(left)} sandboxes behind: {', '.join(left)}")
    if worker is not None:
        worker["created"] = _created
        worker["complaints"] = _complaints
        return
    proves = True
    if REQUIRE_REAL and not session.config.option.collectonly:
        if not _created and REQUIRE_REAL == "1":
            _complaints.append("no real sandbox ran, so this run proves nothing")
        if _skipped:
            _complaints.append("skipped without the mark may_skip: " + ", ".join(_skipped))
        proves = not _skipped and (bool(_created) or REQUIRE_REAL != "1")
    # For tools/run_tests.sh: what it may try once more. A test that failed may have left its sandbox.
    if (cache := getattr(session.config, "cache", None)) is not None:
        cache.set("skerry/again", _failed if proves else [])
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
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(f"{path}/"):
            subprocess.run(["umount", place], check=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def skerry_home() -> Path:
    """The directory all tests of this run share."""
    return Path(os.environ["SKERRY_HOME"])
