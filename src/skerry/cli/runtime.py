"""The boundary of the process: runs a command, and turns its errors and signals into a line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from skerry.cli.options import Format
from skerry.cli.terminal.output import print_error, print_json, say

RUN_FAILED = 125
"""Skerry itself failed to run a command; this is not the command's exit code."""


def execute(work: Callable[[], Awaitable[int | None]], *, output: Format, failure: int = 1) -> NoReturn:
    """Run `work` and exit with what it returns (None: 0), `failure` for an error, 128 + n for the signal n."""
    raise SystemExit(complete(work, output=output, failure=failure))


def complete(work: Callable[[], Awaitable[int | None]], *, output: Format, failure: int = 1) -> int:
    """Run `work` and return what it returns (None: 0); an error is printed and its exit code returned.

    A signal cancels `work`, so what it made is removed, and then ends the process; a second one ends it at once.
    """
    import anyio

    try:
        code, signum = anyio.run(_until_signal, work)
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - the process ends here
        return _report(_single(error), output=output, failure=failure)
    if signum:
        os._exit(128 + signum)  # a thread that still waits for a reader of our output must not keep the process
    return code


def fail_as_told(work: Callable[[], int | None], *, output: Format) -> None:
    """Run `work`, which blocks or has its own event loop, and exit with what it returns, 1 for an error.

    Ctrl-C ends the process at once, with 130.
    """
    import typer

    from skerry.cli.paths import local_errors

    try:
        with local_errors():
            code = work()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:  # noqa: BLE001 - the process ends here
        raise SystemExit(_report(_single(error), output=output, failure=1)) from None
    if code:
        raise SystemExit(code)


def remove_each(names: list[str], remove: Callable[[str], Awaitable[str]], *, output: Format) -> NoReturn:
    """Remove one after the other and print what `remove` returns for each; then exit, with 1 if one failed."""

    async def work() -> int:
        from skerry.core import Conflict, SkerryError

        removed, failed = [], 0
        for name in names:
            try:
                removed.append(await remove(name))
            except SkerryError as error:
                if not isinstance(error, LookupError | Conflict):
                    raise
                print_error(error.message, error.code, error.hint, output=output)
                failed = 1
                continue
            if output is Format.TEXT:
                say(removed[-1])
        if output is Format.JSON:
            print_json({"removed": removed})
        return failed

    execute(work, output=output)


async def _until_signal(work: Callable[[], Awaitable[int | None]]) -> tuple[int, int]:
    """What `work` returned, and the signal that ended it (0: none)."""
    import anyio

    code, received = 0, 0

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal received
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            started.set()
            async for signum in signals:
                if received:
                    os._exit(128 + signum)
                received = signum
                scope.cancel()

    started = anyio.Event()
    async with anyio.create_task_group() as watcher:
        with anyio.CancelScope() as scope:
            watcher.start_soon(watch, scope)
            await started.wait()
            code = await work() or 0
        watcher.cancel_scope.cancel()
    return code, received


def _single(error: BaseException) -> BaseException:
    """The error inside groups of a single error, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _report(error: BaseException, *, output: Format, failure: int) -> int:
    """Print what went wrong; returns the exit code for it. Raises it again for SKERRY_DEBUG=1."""
    from skerry.core import SkerryError

    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return 128 + signal.SIGPIPE
    if os.environ.get("SKERRY_DEBUG") == "1":
        raise error
    if isinstance(error, SkerryError):
        print_error(error.message, error.code, error.hint, retryable=error.retryable, output=output)
    else:
        text = f"{type(error).__name__}: {error}"
        print_error(text, "INTERNAL", "this is a bug; SKERRY_DEBUG=1 shows where", output=output)
    return failure


def _discard_stdout() -> None:
    """Replace a stdout that nobody reads, so that Python's last flush does not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
