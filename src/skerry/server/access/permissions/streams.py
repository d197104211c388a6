"""Rules of the WebSockets, and what each opener of the wire protocol needs."""

from __future__ import annotations

from skerry.server.access.permissions import provider
from skerry.server.access.permissions.model import Action, Rule
from skerry.wire import Attach, AttachFlags, FieldError, Frame, Life, Type

_READ, _WRITE, _DESTROY = Action.SANDBOX_READ, Action.SANDBOX_WRITE, Action.SANDBOX_DESTROY
SLACK = 1.0
"""Seconds by which a new end may precede the old one and still count as the same: their clocks start apart."""

RULES: dict[tuple[str, str], Rule] = {
    ("WS", "/v1/sandboxes/{sandbox}/wire"): Rule(_READ, "sandbox"),
    ("WS", "/v1/sandboxes/{sandbox}/terminals/{terminal}"): Rule(_READ, "sandbox"),
    ("WS", "/v1/sandboxes/{sandbox}/processes/{process}"): Rule(_READ, "sandbox"),
    **provider.RULES,
}
"""Opening a socket needs the right to read; what the client does in it is checked there."""

OPENERS: dict[Type, Action] = {
    Type.START: _WRITE,
    Type.ATTACH: _WRITE,
    Type.SIGNAL: _WRITE,
    Type.PROCESSES: _READ,
    Type.ENV: _WRITE,
    Type.LIFE: _WRITE,
    Type.STATS: _READ,
    Type.READ: _READ,
    Type.WRITE: _WRITE,
    Type.LIST: _READ,
    Type.STAT: _READ,
    Type.MKDIR: _WRITE,
    Type.REMOVE: _WRITE,
    Type.RENAME: _WRITE,
    Type.CHMOD: _WRITE,
    Type.CHOWN: _WRITE,
    Type.SYMLINK: _WRITE,
    Type.COPY: _WRITE,
    Type.HASH: _READ,
    Type.RESIZE: _WRITE,
    Type.WATCH: _READ,
    Type.PORTS: _READ,
    Type.DIAL: _WRITE,
    Type.PACK: _READ,
    Type.UNPACK: _WRITE,
}
"""Every message that begins a stream, and what it needs. One that is not here is refused."""


def action_of(frame: Frame, left: float | None = None) -> Action | None:
    """What an opener needs; its content decides for some. None: nobody may send it.

    `left` is how many seconds the sandbox still has to live, if known: to let it end sooner is to destroy it.
    """
    try:
        action = OPENERS[Type(frame.type)]
        if frame.type == Type.ATTACH and Attach.decode(frame.payload).flags & AttachFlags.VIEW:
            return _READ
        if frame.type == Type.LIFE and (life := Life.decode(frame.payload)) != Life():
            lives = life.deadline_ms is not None and left is not None and life.deadline_ms / 1000 >= left - SLACK
            return _WRITE if lives and not life.end and life.idle_ms is None else _DESTROY
        if frame.type == Type.LIFE:
            return _READ  # whether the agent answers
    except (ValueError, KeyError, FieldError):
        return None
    return action
