"""The commands `storage show`, `storage unlock` and `storage unmount`."""

from __future__ import annotations

from types import ModuleType

import typer

from skerry.cli import options
from skerry.cli.options import Format
from skerry.cli.runtime import execute
from skerry.cli.terminal.output import note, print_json, say, size

HELP = """Show where this machine keeps the files of sandboxes.

\b
Example:
  skerry storage show
"""

app = typer.Typer(name="storage", help=HELP, rich_markup_mode=None, add_completion=False)


@app.command()
def show(output: options.Output = Format.TEXT) -> None:
    """Show the kind of storage, its space, and what is in it.

    \b
    Example:
      skerry storage show -o json
    """

    async def work() -> None:
        from anyio.to_thread import run_sync

        report = await run_sync(_local().report)
        if output is Format.JSON:
            print_json(report)
            return
        lines = {
            "kind": report.kind,
            "home": report.home,
            "image": "-" if report.image is None else f"{report.image}, {size(report.allocated)} on disk",
            "size": size(report.size),
            "used": size(report.used),
            "free": size(report.free),
            "limits": "enforced" if report.limits else "not enforced here",
            "sandboxes": str(report.sandboxes),
            "snapshots": str(report.snapshots),
            "volumes": str(report.volumes),
            "encrypted": {"none": "no encrypted pool yet"}.get(report.encrypted, report.encrypted)
            + (f", its key is in {report.key_file}" if report.key_file else ""),
        }
        for label, value in lines.items():
            say(f"{label + ':':<12} {value}")

    execute(work, output=output)


@app.command()
def unlock(key: options.Key = None, output: options.Output = Format.TEXT) -> None:
    """Mount the encrypted pool until `unmount` or a reboot.

    Without --key, Skerry uses SKERRY_DISK_KEY, or the key file that it has made. With one of these, every use of an
    encrypted sandbox mounts the pool by itself.

    \b
    Example:
      skerry storage unlock --key file:/media/usb/disk.key
    """

    async def work() -> None:
        from functools import partial

        from anyio.to_thread import run_sync

        was_locked = await run_sync(partial(_local().unlock, key))
        if output is Format.JSON:
            print_json({"unlocked": was_locked})
        else:
            note("unlocked" if was_locked else "the encrypted pool was unlocked already")

    execute(work, output=output)


@app.command()
def unmount(output: options.Output = Format.TEXT) -> None:
    """Unmount the storage pools; the next use mounts them again.

    Use it before you move, copy or remove SKERRY_HOME. It is refused while a sandbox runs. The kernel then forgets the
    key of the encrypted pool.

    \b
    Example:
      skerry storage unmount
    """

    async def work() -> None:
        from anyio.to_thread import run_sync

        was_mounted = await run_sync(_local().unmount)
        if output is Format.JSON:
            print_json({"unmounted": was_mounted})
        else:
            note("unmounted" if was_mounted else "the pool was not mounted")

    execute(work, output=output)


def _local() -> ModuleType:
    """The local provider's module for its pool: no other provider has a pool here."""
    from importlib import import_module

    from skerry.core import registry

    return import_module(f"{registry.BUILT_IN['local'][0]}.storage_commands")
