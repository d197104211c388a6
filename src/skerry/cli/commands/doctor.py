"""The command `doctor`: what this machine can do."""

from __future__ import annotations

import sys

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import print_json


def doctor(output: options.Output = Format.TEXT) -> None:
    """Say what this machine can do and what is missing.

    Shows the command that fixes each missing thing. Exits with 1 if sandboxes cannot work.

    \b
    Example:
      skerry doctor
    """

    async def work() -> int:
        from importlib import import_module

        from anyio.to_thread import run_sync

        from skerry.core import registry

        probe = import_module(f"{registry.BUILT_IN['local'][0]}.doctor")
        checks = await run_sync(probe.checks)
        level: str = await run_sync(probe.isolation_level)
        works = all(check.ok for check in checks if check.required)
        if output is Format.JSON:
            print_json({"works": works, "isolation": level, "checks": checks})
            return 0 if works else 1
        green, yellow, red, end = ("\033[32m", "\033[33m", "\033[31m", "\033[0m") if sys.stdout.isatty() else ("",) * 4
        for check in checks:
            mark = (
                f"{green}ok{end}     "
                if check.ok
                else f"{red}missing{end}"
                if check.required
                else f"{yellow}no{end}     "
            )
            print(f"{mark}  {check.name}: {check.detail}")
            if not check.ok and check.fix:
                print(f"         fix: {check.fix}")
        print(f"\nisolation: {level}")
        print("sandboxes work on this machine" if works else "sandboxes do not work on this machine yet")
        return 0 if works else 1

    execute(work, output=output)
