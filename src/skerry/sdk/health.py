"""Health checks of a sandbox: built-in ones, and the caller's own."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio

from skerry._model import Model
from skerry.core import ExecResult, InvalidArgument, SkerryError, State, check_seconds
from skerry.sdk.connection.link import CHECK_GUARD

if TYPE_CHECKING:
    from skerry.sdk.blocking._sync import Sandbox
    from skerry.sdk.sandbox import AsyncSandbox

DISK_FULL = 0.99
MEMORY_FULL = 0.95


class HealthCheck(Model, kw_only=False):
    """A check with its own time limit, in seconds."""

    check: str | Callable[..., object]
    timeout: float = CHECK_GUARD


Check = str | Callable[["AsyncSandbox"], object] | HealthCheck
"""A shell command that must exit with 0, or a function of the sandbox that returns True or None when all is well, and
False or the reason when it is not, or what `exec` returned; it may be a coroutine function."""
BlockingCheck = str | Callable[["Sandbox"], object] | HealthCheck
"""As Check, with a function of the blocking sandbox; it runs in a thread."""
Checks = Mapping[str, Check]
BlockingChecks = Mapping[str, BlockingCheck]


class Health(Model):
    """What one check found."""

    name: str
    """The name of the check."""
    healthy: bool
    """Whether it found nothing wrong."""
    reason: str | None
    """Why it is not healthy."""
    duration: float
    """How long it took, in seconds."""

    def __bool__(self) -> bool:
        return self.healthy


class HealthReport(Model):
    """What all checks found; `healthy`, and true in an `if`, when every one is."""

    healthy: bool
    """Whether all checks found nothing wrong."""
    checks: dict[str, Health]
    """What each check found."""

    def __bool__(self) -> bool:
        return self.healthy


async def examine(sandbox: AsyncSandbox, checks: Checks | None, timeout: float) -> HealthReport:
    """Run the built-in checks and `checks`, all at once. Raises InvalidArgument for an invalid check."""
    chosen = {**_BUILT_IN, **_checked(checks)}
    check_seconds(timeout)
    if (asleep := await _asleep(sandbox)) is not None:
        # A check does not start the sandbox.
        idle = {name: Health(name=name, healthy=False, reason=asleep, duration=0.0) for name in chosen}
        return HealthReport(healthy=False, checks=idle)
    found = await asyncio.gather(*(_run(sandbox, name, check, timeout) for name, check in chosen.items()))
    return HealthReport(healthy=all(health.healthy for health in found), checks={one.name: one for one in found})


async def _asleep(sandbox: AsyncSandbox) -> str | None:
    """Why a sandbox that is there and has not failed cannot be asked; None: it can, or asking will tell."""
    try:
        info = await sandbox.info()
    except SkerryError:
        return None
    if info.state in (State.RUNNING, State.FAILED):
        return None
    return f"the sandbox is {info.state}" + (f": {info.reason}" if info.reason else "")


def _checked(checks: object) -> Checks:
    if checks is None:
        return {}
    if not isinstance(checks, Mapping):
        raise InvalidArgument(f"checks must be a mapping of names to checks, not {type(checks).__name__}")
    for name, check in checks.items():
        inner = check.check if isinstance(check, HealthCheck) else check
        if isinstance(check, HealthCheck):
            check_seconds(check.timeout)
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"{name!r} is not a name for a check")
        if not (isinstance(inner, str) and inner) and not callable(inner):
            raise InvalidArgument(f"the check {name!r} must be a command or a function, not {type(inner).__name__}")
    return checks


async def _run(sandbox: AsyncSandbox, name: str, check: Check, timeout: float) -> Health:
    began = time.monotonic()
    if isinstance(check, HealthCheck):
        timeout = check.timeout
        check = check.check
    try:
        with anyio.fail_after(timeout):
            reason = await (_command(sandbox, check) if isinstance(check, str) else _function(sandbox, check))
    except TimeoutError as error:
        late = time.monotonic() - began >= timeout
        reason = f"no answer within {timeout:g} s" if late else f"{type(error).__name__}: {error}"
    except SkerryError as error:
        reason = f"{error.code}: {error}"
    except Exception as error:  # noqa: BLE001
        # The caller's own code: what it raises is what it found.
        reason = f"{type(error).__name__}: {error}"
    return Health(name=name, healthy=reason is None, reason=reason, duration=time.monotonic() - began)


async def _command(sandbox: AsyncSandbox, command: str) -> str | None:
    return _failure(await sandbox.exec(command))


def _failure(result: ExecResult) -> str | None:
    """Why a command did not do what it should; None: it did."""
    if result.ok:
        return None
    how = f"exit code {result.exit_code}" if result.signal is None else f"signal {result.signal}"
    if result.timed_out:
        how = f"{result.command} ran out of time after {result.duration:.3g} s"
    tail = (result.stderr.strip() or result.stdout.strip()).rpartition("\n")[2][-300:]
    return f"{how}: {tail}" if tail else how


async def _function(sandbox: AsyncSandbox, check: Callable[[AsyncSandbox], object]) -> str | None:
    outcome = check(sandbox)
    if inspect.isawaitable(outcome):
        outcome = await outcome
    if outcome is None or outcome is True:
        return None
    if outcome is False:
        return "the check returned False"
    if isinstance(outcome, str):
        return outcome or None
    if isinstance(outcome, ExecResult):
        return _failure(outcome)
    return f"the check returned {type(outcome).__name__}: neither a bool, a reason nor the result of a command"


async def _agent(sandbox: AsyncSandbox) -> str | None:
    info = await sandbox.info()
    if info.state is not State.RUNNING:
        return f"the sandbox is {info.state}" + (f": {info.reason}" if info.reason else "")
    await sandbox.reconnect()
    return None


async def _disk(sandbox: AsyncSandbox) -> str | None:
    usage = await sandbox.usage()
    if not usage.disk_total or usage.disk_used is None or usage.disk_used < usage.disk_total * DISK_FULL:
        return None
    return f"{usage.disk_used} of {usage.disk_total} bytes are used"


async def _memory(sandbox: AsyncSandbox) -> str | None:
    usage = await sandbox.usage()
    if not usage.memory_total or usage.memory_used < usage.memory_total * MEMORY_FULL:
        return None
    return f"{usage.memory_used} of {usage.memory_total} bytes are used"


async def _workdir(sandbox: AsyncSandbox) -> None:
    name = f".health-{secrets.token_hex(8)}"
    await sandbox.files.write(name, b"", parents=False)
    await sandbox.files.remove(name)


_BUILT_IN: dict[str, Check] = {
    "agent": _agent,
    "command": "true",
    "disk": _disk,
    "memory": _memory,
    "workdir": _workdir,
}


def blocking_checks(checks: BlockingChecks | None, sandbox: Sandbox) -> Checks | None:
    """The same checks for the async API: each function gets the blocking sandbox, in its own thread."""
    if checks is None or not isinstance(checks, Mapping):
        return checks
    return {name: _blocking(check, sandbox) for name, check in checks.items()}


def _blocking(check: BlockingCheck, sandbox: Sandbox) -> Check:
    if isinstance(check, HealthCheck):
        function = check.check
        return check if not callable(function) else HealthCheck(_in_thread(function, sandbox), check.timeout)
    return _in_thread(check, sandbox) if callable(check) else check


def _in_thread(check: Callable[[Sandbox], object], sandbox: Sandbox) -> Callable[[AsyncSandbox], Awaitable[object]]:
    async def run(_: AsyncSandbox) -> object:
        return await anyio.to_thread.run_sync(check, sandbox, abandon_on_cancel=True)

    return run
