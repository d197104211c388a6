"""Stopping, starting, freezing and resetting a sandbox, and what that means for its connections."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from skerry.core import (
    Archivable,
    Changes,
    Conflict,
    InvalidArgument,
    Pausable,
    Provider,
    SandboxFailed,
    SandboxInfo,
    SandboxNotFound,
    SandboxSpec,
    Stoppable,
    Unsupported,
)
from skerry.sdk.commands.request import encode_env
from skerry.sdk.connection.link import Link
from skerry.sdk.options import ResourceOptions, check_resources, check_text

if TYPE_CHECKING:
    from skerry.sdk.ports.ports import AsyncPorts
    from skerry.sdk.state.export import KeyOptions

MAX_GRACE = 120.0
"""Seconds that the processes of a sandbox may have to end: others wait for as long."""


def stoppable(provider: Provider, option: str) -> Stoppable:
    """Raises Unsupported."""
    if not isinstance(provider, Stoppable):
        raise Unsupported(f"{provider.name} cannot stop and start sandboxes", option=option)
    return provider


def pausable(provider: Provider, option: str) -> Pausable:
    """Raises Unsupported."""
    if not isinstance(provider, Pausable):
        raise Unsupported(f"{provider.name} cannot freeze sandboxes", option=option)
    return provider


def archivable(provider: Provider, option: str) -> Archivable:
    """Raises Unsupported."""
    if not isinstance(provider, Archivable):
        raise Unsupported(f"{provider.name} cannot archive sandboxes", option=option)
    return provider


def check_inactivity(provider: Provider, spec: SandboxSpec) -> None:
    """Raises Unsupported for an end by inactivity that `provider` cannot see to."""
    for option in ("auto_stop", "auto_archive", "auto_delete"):
        if getattr(spec, option) is not None:
            stoppable(provider, option)
    if spec.auto_archive is not None:
        archivable(provider, "auto_archive")


def check_timeout(provider: Provider, spec: SandboxSpec) -> None:
    """Raises Unsupported for an `on_timeout` that `provider` cannot see to."""
    if spec.on_timeout is None or spec.on_timeout in provider.on_timeout:
        return
    can = ", ".join(repr(each) for each in sorted(provider.on_timeout))
    raise Unsupported(
        f"{provider.name} cannot {spec.on_timeout} a sandbox at its timeout, and no other provider here can",
        option="on_timeout",
        hint=f"{provider.name} takes {can}",
    )


def check_grace(seconds: float) -> float:
    """How long processes may take to end; 0: they are killed at once. Raises InvalidArgument."""
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0:
        raise InvalidArgument(f"timeout must be a number of seconds from 0 to {MAX_GRACE:g}, not {seconds!r}")
    if seconds > MAX_GRACE:
        raise InvalidArgument(
            f"a timeout of {seconds:g} s is above the maximum of {MAX_GRACE:g} s",
            hint="end what needs longer by a command, then stop the sandbox",
        )
    return float(seconds)


@asynccontextmanager
async def interrupting(link: Link, ports: AsyncPorts) -> AsyncIterator[None]:
    """Wraps an operation that ends every process of a sandbox: its forwards and connections are useless afterwards.

    Forwards end first: a client that connects to one would start the sandbox again.
    """
    before = link.sessions()
    await ports._close()
    yield
    await link.drop(before)
    link.paused = False


async def stop(link: Link, ports: AsyncPorts, grace: float) -> SandboxInfo:
    provider = stoppable(link.provider, "stop")
    check_grace(grace)
    async with interrupting(link, ports):
        return await provider.stop(link.sandbox_id, grace=grace)


async def start(link: Link, key: KeyOptions | None = None) -> SandboxInfo:
    provider = stoppable(link.provider, "start")
    if key is not None:
        from skerry.sdk.state.export import read_key

        await archivable(link.provider, "key").unarchive(link.sandbox_id, key=await read_key(key))
    return await link.start(provider)


async def archive(link: Link, ports: AsyncPorts, key: KeyOptions | None) -> SandboxInfo:
    from skerry.sdk.state.export import read_key

    provider, secret = archivable(link.provider, "archive"), await read_key(key)
    async with interrupting(link, ports):
        return await provider.archive(link.sandbox_id, key=secret)


async def restart(
    link: Link,
    ports: AsyncPorts,
    grace: float,
    *,
    env: Mapping[str, str] | None,
    resources: ResourceOptions | None,
    template: str | None,
) -> SandboxInfo:
    provider = stoppable(link.provider, "restart")
    check_grace(grace)
    encode_env(env or {})
    changes = Changes(
        env=None if env is None else dict(env),
        resources=None if resources is None else check_resources(resources),
        template=None if template is None else check_text(template, "template"),
    )
    async with interrupting(link, ports):
        info = await provider.restart(link.sandbox_id, changes, grace=grace)
    await link.renew_lease()
    return info


async def reset(link: Link, ports: AsyncPorts, *, hard: bool) -> SandboxInfo:
    provider = stoppable(link.provider, "reset")
    async with interrupting(link, ports):
        info = await provider.reset(link.sandbox_id, hard=hard)
    await link.renew_lease()
    return info


async def recover(link: Link, ports: AsyncPorts) -> SandboxInfo:
    provider = stoppable(link.provider, "recover")
    async with interrupting(link, ports):
        info = await provider.recover(link.sandbox_id)
    await link.renew_lease()
    return info


async def pause(link: Link) -> SandboxInfo:
    info = await pausable(link.provider, "pause").pause(link.sandbox_id)
    link.paused = True
    return info


async def resume(link: Link) -> SandboxInfo:
    info = await pausable(link.provider, "resume").resume(link.sandbox_id)
    link.paused = False
    return info


async def end(link: Link, grace: float) -> None:
    """Let what runs in it end before it is destroyed; one that does not run has nothing to end."""
    provider = stoppable(link.provider, "graceful")
    check_grace(grace)
    try:
        await provider.stop(link.sandbox_id, grace=grace)
    except (SandboxNotFound, SandboxFailed, Conflict):
        pass
