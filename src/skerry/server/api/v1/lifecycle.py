"""The lifecycle of a sandbox."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from skerry.core import SandboxInfo, State
from skerry.server.context import Sandbox
from skerry.server.projects.slots import CHANGES
from skerry.server.web.describe import SANDBOX, Box, SandboxModel, op, shown
from skerry.server.web.guard import Routes
from skerry.server.web.models import sandboxes as models
from skerry.server.web.models.mirror import answer
from skerry.server.web.refusals import LIFE
from skerry.server.web.responses import while_there

router = Routes("lifecycle", raises=LIFE)


def _answer(sandbox: Sandbox, info: SandboxInfo) -> Response:
    return answer(shown(sandbox.project, sandbox.shown(info)))


@router.post(SANDBOX + "/stop", slots=CHANGES, **op("Stop a sandbox and keep its files", SandboxModel))
async def stop(sandbox: Sandbox, box: Box, body: models.StopSandbox | None = None) -> Response:
    return _answer(sandbox, await box.stop(timeout=(body or models.StopSandbox()).timeout))


@router.post(
    SANDBOX + "/start", slots=CHANGES, **op("Start a stopped or archived sandbox, or resume a paused one", SandboxModel)
)
async def start(sandbox: Sandbox, box: Box, body: models.StartSandbox | None = None) -> Response:
    return _answer(sandbox, await box.start(key=None if body is None else body.key))


@router.post(
    SANDBOX + "/restart",
    slots=CHANGES,
    **op("Stop and start a sandbox, optionally with changes", SandboxModel, raises=(*LIFE, "TEMPLATE_NOT_FOUND")),
)
async def restart(sandbox: Sandbox, box: Box, body: models.RestartSandbox | None = None) -> Response:
    """A change that is not possible is refused before the sandbox is stopped."""
    wanted = body or models.RestartSandbox()
    resources = None if wanted.resources is None else wanted.resources.options()
    info = await box.restart(env=wanted.env, resources=resources, template=wanted.template, timeout=wanted.timeout)
    return _answer(sandbox, info)


@router.post(SANDBOX + "/pause", slots=CHANGES, **op("Freeze the processes of a sandbox in memory", SandboxModel))
async def pause(sandbox: Sandbox, box: Box) -> Response:
    return _answer(sandbox, await box.pause())


@router.post(SANDBOX + "/resume", slots=CHANGES, **op("Resume the processes of a sandbox", SandboxModel))
async def resume(sandbox: Sandbox, box: Box) -> Response:
    return _answer(sandbox, await box.resume())


@router.post(SANDBOX + "/archive", slots=CHANGES, **op("Put a sandbox into compressed cold storage", SandboxModel))
async def archive(sandbox: Sandbox, box: Box, body: models.ArchiveSandbox | None = None) -> Response:
    """`start` brings it back. With a key, the archive is encrypted, and `start` needs the same key."""
    return _answer(sandbox, await box.archive(key=None if body is None else body.key))


@router.post(SANDBOX + "/recover", slots=CHANGES, **op("Start a failed sandbox, with the files it had", SandboxModel))
async def recover(sandbox: Sandbox, box: Box) -> Response:
    return _answer(sandbox, await box.recover())


@router.post(
    SANDBOX + "/reset",
    slots=CHANGES,
    **op("Reset a sandbox: kill its processes; hard: reset its files too", SandboxModel),
)
async def reset(sandbox: Sandbox, box: Box, body: models.ResetSandbox | None = None) -> Response:
    """The sandbox runs afterwards. Volumes are not touched."""
    return _answer(sandbox, await box.reset(hard=(body or models.ResetSandbox()).hard))


@router.get(SANDBOX + "/wait", **op("Wait until a sandbox is in a state", SandboxModel))
async def wait(
    request: Request,
    sandbox: Sandbox,
    box: Box,
    state: Annotated[State, Query(description="The state to wait for.")],
    timeout: Annotated[float, Query(gt=0, le=86400, description="Wait at most this many seconds.")] = 60.0,
) -> Response:
    """Answers TIMEOUT if the sandbox is in another state by then."""
    return _answer(sandbox, await while_there(request, box.wait_for_state(state, timeout=timeout)))
