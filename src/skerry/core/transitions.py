"""What a sandbox's state allows to be done with it, and which state may follow which."""

from __future__ import annotations

from skerry.core.errors import Conflict
from skerry.core.models import State

ALLOWED: dict[str, frozenset[State]] = {
    "stop": frozenset({State.RUNNING, State.PAUSED, State.STOPPED, State.ARCHIVED}),
    "start": frozenset({State.STOPPED, State.ARCHIVED, State.PAUSED, State.RUNNING}),
    "restart": frozenset({State.RUNNING, State.PAUSED, State.STOPPED}),
    "pause": frozenset({State.RUNNING, State.PAUSED}),
    "resume": frozenset({State.PAUSED, State.RUNNING}),
    "reset": frozenset({State.RUNNING, State.PAUSED, State.STOPPED, State.FAILED}),
    "recover": frozenset({State.FAILED}),
    "archive": frozenset({State.RUNNING, State.PAUSED, State.STOPPED, State.ARCHIVED}),
    "change": frozenset({State.RUNNING, State.PAUSED}),
}
"""The states in which each operation is allowed; it does nothing where its result is already there. Destroy: any."""

NEXT: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.FAILED, State.DESTROYED}),
    State.RUNNING: frozenset({State.STOPPING, State.PAUSED, State.RESTORING, State.FAILED, State.DESTROYED}),
    State.STOPPING: frozenset({State.STOPPED, State.ARCHIVED, State.RESTORING, State.FAILED, State.DESTROYED}),
    State.STOPPED: frozenset({State.RESTORING, State.ARCHIVED, State.DESTROYED}),
    State.PAUSED: frozenset({State.RUNNING, State.STOPPING, State.RESTORING, State.FAILED, State.DESTROYED}),
    State.ARCHIVED: frozenset({State.RESTORING, State.STOPPED, State.DESTROYED}),
    State.RESTORING: frozenset({State.RUNNING, State.STOPPED, State.ARCHIVED, State.FAILED, State.DESTROYED}),
    State.FAILED: frozenset({State.RESTORING, State.DESTROYED}),
    State.DESTROYED: frozenset(),
}
"""The states that may follow each."""

_HINTS = {
    State.CREATING: "wait for it",
    State.STOPPING: "wait for it, then try again",
    State.RESTORING: "wait for it, then try again",
    State.STOPPED: "start it first",
    State.PAUSED: "resume it first",
    State.ARCHIVED: "start it first",
    State.FAILED: "recover it, or destroy it",
}


def require(operation: str, sandbox_id: str, state: State, allowed: frozenset[State] | None = None) -> None:
    """Raises Conflict unless `state` allows `operation`."""
    if state not in (ALLOWED[operation] if allowed is None else allowed):
        raise Conflict(f"cannot {operation} sandbox {sandbox_id}: it is {state}", hint=_HINTS.get(state))


def follow(old: State, new: State) -> State:
    """Return `new` if it may follow `old`. Raises AssertionError for anything else, which is a bug of Skerry."""
    assert new is old or new in NEXT[old], f"{old} is never followed by {new}"
    return new
