"""Waiting for a sandbox to reach a state."""

from __future__ import annotations

import dataclasses

import anyio

from skerry.core import Provider, SandboxInfo, SandboxNotFound, State, Timeout, check_seconds
from skerry.sdk.events import EventLog
from skerry.sdk.listing import check_state


async def wait_for_state(
    provider: Provider, log: EventLog, last: SandboxInfo, state: State | str, timeout: float
) -> SandboxInfo:
    """Ask again after every event that is seen here, and otherwise as often as a listener asks the provider."""
    wanted = check_state(state)
    with anyio.move_on_after(check_seconds(timeout)):
        while True:
            try:
                last = await provider.get(last.id)
            except SandboxNotFound:
                if wanted is not State.DESTROYED:
                    raise
                return dataclasses.replace(last, state=State.DESTROYED)
            if last.state is wanted:
                return last
            await log.wait()
    raise Timeout(f"sandbox {last.id} is still {last.state} after {timeout:g} s, not {wanted}")
