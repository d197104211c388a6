"""Runs a command in a sandbox with this process's stdin, stdout and stderr."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from skerry.cli.options import Format
from skerry.cli.terminal.output import print_error, print_json
from skerry.core import CommandNotFound, ExecResult, ExecStatus, PermissionDenied, SkerryError, check_seconds

if TYPE_CHECKING:
    from skerry import AsyncSandbox

TIMED_OUT, NOT_EXECUTABLE, NOT_FOUND, OUT_OF_MEMORY = 124, 126, 127, 137
"""The same exit codes as those of `timeout`, the shell and the kernel's SIGKILL."""

CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A command line to run, and how. Raises InvalidArgument for an invalid timeout."""

    argv: list[str]
    timeout: float | None
    user: str | None
    sudo: bool
    cwd: str | None
    env: dict[str, str] = field(default_factory=dict)
    interactive: bool = False

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds(self.timeout, "--timeout")


async def run_job(sandbox: AsyncSandbox, job: Job, *, output: Format) -> int:
    """Run `job` to its end; the exit code for this process. Raises what `exec` raises, except for a missing program."""
    try:
        result = await (_collect if output is Format.JSON else _stream)(sandbox, job)
    except (CommandNotFound, PermissionDenied) as error:
        return not_run(error, output=output)
    if output is Format.JSON:
        print_json(result_data(sandbox.id, result))
    elif result.timed_out or result.status is ExecStatus.OUT_OF_MEMORY:
        _explain(result)
    return exit_code(result)


def not_run(error: CommandNotFound | PermissionDenied, *, output: Format) -> int:
    """Print why the command did not begin; returns the exit code that a shell has for it."""
    print_error(error.message, error.code, error.hint, output=output)
    return NOT_FOUND if isinstance(error, CommandNotFound) else NOT_EXECUTABLE


async def _collect(sandbox: AsyncSandbox, job: Job) -> ExecResult:
    return await sandbox.exec(
        job.argv, cwd=job.cwd, env=job.env, timeout=job.timeout, user=job.user, sudo=job.sudo, stdin=_stdin(job)
    )


async def _stream(sandbox: AsyncSandbox, job: Job) -> ExecResult:
    async with sandbox.exec_stream(
        job.argv,
        cwd=job.cwd,
        env=job.env,
        timeout=job.timeout,
        user=job.user,
        sudo=job.sudo,
        stdin=_stdin(job),
        output_limit=0,
    ) as stream:
        async for chunk in stream:
            await write(1 if chunk.stream == "stdout" else 2, chunk.data)
        return await stream.wait()


def _explain(result: ExecResult) -> None:
    try:
        result.check()
    except SkerryError as error:
        print_error(error.message, error.code, error.hint, output=Format.TEXT)


def exit_code(result: ExecResult) -> int:
    """The exit code that a shell would report."""
    if result.timed_out:
        return TIMED_OUT
    if result.status is ExecStatus.OUT_OF_MEMORY and result.exit_code is None:
        return OUT_OF_MEMORY
    if result.signal is not None:
        return 128 + result.signal
    if result.exit_code is None:
        raise AssertionError(f"a command that is {result.status} has neither an exit code nor a signal")
    return result.exit_code


def result_data(sandbox_id: str, result: ExecResult) -> dict[str, object]:
    return {
        "sandbox": sandbox_id,
        "exit_code": result.exit_code,
        "status": result.status,
        "signal": result.signal,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "duration": result.duration,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "truncated": result.truncated,
        "dropped_bytes": result.dropped_bytes,
    }


async def write(fd: int, data: bytes) -> None:
    """Write all of `data`, in a thread: a slow reader delays the command, not the signals to this process."""
    await run_sync(_write_all, fd, data, abandon_on_cancel=True)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _stdin(job: Job) -> AsyncIterator[bytes] | None:
    """This process's stdin, unless it is closed, or is a terminal and the job is not interactive."""
    if sys.stdin is None or (os.isatty(0) and not job.interactive):
        return None
    return read_stdin()


async def read_stdin() -> AsyncIterator[bytes]:
    """This process's stdin to its end."""
    mode = os.fstat(0).st_mode
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)  # a file is always ready
    while True:
        if waits:
            await anyio.wait_readable(0)
        data = os.read(0, CHUNK)
        if not data:
            return
        yield data
