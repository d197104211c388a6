"""The commands `stop`, `start`, `restart`, `pause`, `resume`, `recover` and `reset`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli import options
from skerry.cli.create_options import Given, with_options
from skerry.cli.declare import Option, Seconds
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import print_error, print_json, say

if TYPE_CHECKING:
    from skerry import AsyncSandbox
    from skerry.core import SandboxInfo

Sandboxes = Annotated[
    list[str], typer.Argument(metavar="SANDBOX...", help="The ids or names of sandboxes.", show_default=False)
]
Grace = Annotated[
    Seconds,
    Option("--timeout", "-t", metavar="TIME", help="Kill processes that have not ended after this long."),
]


def stop(sandboxes: Sandboxes, timeout: Grace = Seconds(10), output: options.Output = Format.TEXT) -> None:
    """Stop sandboxes and keep their files; print their ids.

    Skerry asks their processes to end and kills them after --timeout. The lifetime of a stopped sandbox does not run.
    `skerry exec` and similar commands start it again.

    \b
    Example:
      skerry stop my-box

    \b
    Exit codes:
      0  all of them are stopped
      1  one could not be; the others are
    """
    each(sandboxes, lambda box: box.stop(timeout=timeout), output)


def start(sandboxes: Sandboxes, key: options.Key = None, output: options.Output = Format.TEXT) -> None:
    """Start sandboxes that do not run; print their ids.

    They keep their files and variables, and get their full lifetime again. --key is the key they were archived with.

    \b
    Example:
      skerry start my-box
      skerry start --key file:/root/key my-box

    \b
    Exit codes:
      0  all of them run
      1  one could not be started; the others run
    """
    each(sandboxes, lambda box: box.start(key=key), output)


@with_options("env", "memory", "cpu", "pids", "disk", "template")
def restart(
    sandboxes: Sandboxes, given: Given, timeout: Grace = Seconds(10), output: options.Output = Format.TEXT
) -> None:
    """Stop sandboxes and start them, with changes if you like.

    A change that is not possible is refused before anything is stopped. Variables are added to those that are set, or
    replace them.

    \b
    Example:
      skerry restart my-box
      skerry restart --memory 1GB --env MODE=debug my-box

    \b
    Exit codes:
      0  all of them run
      1  one was refused or did not start; the others run
    """

    async def change(box: AsyncSandbox) -> SandboxInfo:
        return await box.restart(**given(), timeout=timeout)

    each(sandboxes, change, output)


def pause(sandboxes: Sandboxes, output: options.Output = Format.TEXT) -> None:
    """Freeze the processes of sandboxes in memory; print their ids.

    Their lifetime keeps running. `skerry resume`, or the next command in a sandbox, lets its processes continue.

    \b
    Example:
      skerry pause my-box

    \b
    Exit codes:
      0  all of them are paused
      1  one could not be; the others are
    """
    each(sandboxes, lambda box: box.pause(), output)


def resume(sandboxes: Sandboxes, output: options.Output = Format.TEXT) -> None:
    """Resume the processes of paused sandboxes; print their ids.

    \b
    Example:
      skerry resume my-box

    \b
    Exit codes:
      0  all of them run
      1  one was not paused; the others run
    """
    each(sandboxes, lambda box: box.resume(), output)


def recover(sandboxes: Sandboxes, output: options.Output = Format.TEXT) -> None:
    """Start sandboxes that have failed, with their files.

    \b
    Example:
      skerry recover my-box

    \b
    Exit codes:
      0  all of them run
      1  one had not failed or its files are missing; the others run
    """
    each(sandboxes, lambda box: box.recover(), output)


def reset(
    sandboxes: Sandboxes,
    hard: Annotated[bool, typer.Option("--hard", help="Reset their files too, to those of their creation.")] = False,
    output: options.Output = Format.TEXT,
) -> None:
    """Bring sandboxes back to how they began; print their ids.

    All processes end, and the variables are those of the creation again.

    \b
    Example:
      skerry reset my-box
      skerry reset --hard my-box

    \b
    Exit codes:
      0  all of them are clean and run
      1  one could not be reset; the others are
    """
    each(sandboxes, lambda box: box.reset(hard=hard), output)


def each(names: list[str], change: Callable[[AsyncSandbox], Awaitable[SandboxInfo]], output: Format) -> None:
    """Change one after the other; an error of one does not stop the others."""

    async def work() -> int:
        from skerry import AsyncSandbox
        from skerry.core import SkerryError

        done: list[SandboxInfo] = []
        failed = 0
        for name in names:
            try:
                box = await AsyncSandbox.find(name)
                try:
                    done.append(await change(box))
                finally:
                    await box.close()
            except SkerryError as error:
                print_error(error.message, error.code, error.hint, retryable=error.retryable, output=output)
                failed = 1
            else:
                if output is Format.TEXT:
                    say(done[-1].id)
        if output is Format.JSON:
            print_json(done)
        return failed

    execute(work, output=output)
