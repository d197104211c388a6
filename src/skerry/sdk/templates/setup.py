"""Prepares a new sandbox before `create` returns it: its source, then its template's scripts."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal

import anyio

from skerry.core import (
    AlreadyExists,
    BuiltTemplate,
    FileMissing,
    InvalidArgument,
    NotADirectory,
    SandboxInfo,
    Script,
    SkerryError,
    Templates,
    Timeout,
)
from skerry.sdk.commands.request import TextCallback
from skerry.sdk.log import log
from skerry.sdk.templates.sources import Source, fetch
from skerry.sdk.templates.step_errors import KEPT_OUTPUT, named_step, step_error

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

PREPARE_TIMEOUT = 1800.0
SERVED = "/dev/shm/.skerry-served"
"""A directory that is gone when the sandbox stops; the client that makes it starts the services."""
POLL = 0.1


def mark(kind: Literal["preparing", "prepared"], sandbox_id: str) -> str:
    """Directories of the sandbox: the client that makes the first prepares it; the second says that it is done.

    They have its id, so that none of an image, a template, or a snapshot's first sandbox is taken for them.
    """
    return f"/.skerry/{kind}-{sandbox_id}"


async def prepare(
    sandbox: AsyncSandbox, built: BuiltTemplate | None, source: Source | None, on_log: TextCallback | None
) -> None:
    """Fetch the source, then run the template's scripts, once in a sandbox's life, even if several clients created it.

    Until the preparation is done the sandbox ends with this process; if it fails, at once. A provider that can records
    that it is done: what the sandbox's own files say is lost with a reset.

    Raises TemplateBuildFailed, and what fetching raises.
    """
    mine = sandbox.config.idempotency_key is None
    try:
        try:
            await sandbox.files.mkdir(mark("preparing", sandbox.id), user="root", parents=False)
            mine = True
        except AlreadyExists:
            await _wait_until_done(sandbox)
            return
        await sandbox._lease()
        if source is not None:
            await fetch(sandbox, source, on_log)
        if built is not None:
            await _run_scripts(sandbox, built, on_log)
            await _start_services(sandbox, built)
        await sandbox.files.mkdir(mark("prepared", sandbox.id), user="root", parents=False)
        await sandbox._release()
    except BaseException:
        if mine:
            with anyio.CancelScope(shield=True):
                await sandbox.destroy()
        raise


async def make_workdir(sandbox: AsyncSandbox) -> None:
    """Make the working directory that a new sandbox was asked for, as its user's own, unless it is there.

    When that fails the sandbox is destroyed. Raises NotADirectory, and what making it raises.
    """
    made = False
    try:
        await ensure_workdir(sandbox, sandbox._info)
        made = True
    finally:
        if not made and sandbox.config.idempotency_key is None:  # otherwise it may be in use
            with anyio.CancelScope(shield=True):
                await sandbox.destroy()


async def ensure_workdir(sandbox: AsyncSandbox, info: SandboxInfo) -> None:
    """Make the working directory if it is missing; without it no command could be run."""
    try:
        found = await sandbox.files.stat(info.workdir, user="root")
    except FileMissing:
        await sandbox.files.mkdir(info.workdir, user="root")
        try:
            await sandbox.files.chown(info.workdir, owner=info.user, group=info.user, user="root")
        except InvalidArgument:  # there is no group of the user's name
            await sandbox.files.chown(info.workdir, owner=info.user, user="root")
        return
    if not found.is_dir:
        raise NotADirectory(f"the working directory {info.workdir} is not a directory", errno=errno.ENOTDIR)


async def _wait_until_done(sandbox: AsyncSandbox) -> None:
    """For a second `create` under one idempotency key. Raises Timeout, SandboxNotFound when the first failed."""
    with anyio.move_on_after(PREPARE_TIMEOUT):
        done = mark("prepared", sandbox.id)
        while not (await sandbox.info()).prepared and not await sandbox.files.exists(done, user="root"):  # noqa: ASYNC110
            await anyio.sleep(POLL)
        return
    raise Timeout(f"sandbox {sandbox.id} has been in preparation for {PREPARE_TIMEOUT:.0f} s")


async def _run_scripts(sandbox: AsyncSandbox, built: BuiltTemplate, on_log: TextCallback | None) -> None:
    for number, script in enumerate(built.post_create, start=1):
        what, step = f"template {built.name}", f"postCreate {number}: {_first_line(script)}"
        with named_step(what, step):
            result = await sandbox.exec(
                script.run,
                user=script.user,
                timeout=PREPARE_TIMEOUT,
                on_stdout=on_log,
                on_stderr=on_log,
                output_limit=KEPT_OUTPUT,
            )
        if not result.ok:
            raise step_error(what, step, result)


async def serve(sandbox: AsyncSandbox, info: SandboxInfo) -> None:
    """Start what the template of a sandbox that has started runs in the background.

    If the template is gone, or a service cannot be started, the start still succeeds.
    """
    if not isinstance(sandbox._provider, Templates):
        return
    try:
        built = await sandbox._provider.find_template(f"{info.template}@{info.template_id}")
        await _start_services(sandbox, built)
    except SkerryError as error:
        log.error("the services of %s were not started: %s", sandbox.id, error, extra={"sandbox_id": sandbox.id})


async def prepare_again(sandbox: AsyncSandbox, info: SandboxInfo) -> None:
    """Run what a template runs once in a new sandbox, for one whose files are as new again.

    Raises TemplateBuildFailed.
    """
    if info.template_id is not None and isinstance(sandbox._provider, Templates):
        built = await sandbox._provider.find_template(f"{info.template}@{info.template_id}")
        await _run_scripts(sandbox, built, None)


async def _start_services(sandbox: AsyncSandbox, built: BuiltTemplate) -> None:
    if not built.post_start:
        return
    try:
        await sandbox.files.mkdir(SERVED, user="root", parents=False)
    except AlreadyExists:
        return  # another client was there first
    for script in built.post_start:
        await sandbox.processes.spawn(script.run, user=script.user)


def _first_line(script: Script) -> str:
    return next(line.strip() for line in script.run.splitlines() if line.strip())[:50]
