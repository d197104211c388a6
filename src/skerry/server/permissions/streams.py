"""Rules of the WebSockets and of template layers, and what each opener of the wire protocol needs."""

from __future__ import annotations

from skerry.server.permissions.model import Action, Rule
from skerry.wire import Attach, FieldError, Frame, Life, OpenFlags, Type

RULES: dict[tuple[str, str], Rule] = {}

_READ, _WRITE, _ADMIN = Action.SANDBOX_READ, Action.SANDBOX_WRITE, Action.SANDBOX_ADMIN

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


def action_of(frame: Frame) -> Action | None:
    """What an opener needs, with its content looked at where that decides; None: nobody may send it."""
    try:
        action = OPENERS[Type(frame.type)]
        if frame.type == Type.ATTACH and Attach.decode(frame.payload).flags & OpenFlags.VIEW:
            return _READ
        if frame.type == Type.LIFE and Life.decode(frame.payload).end:
            return _ADMIN
    except (ValueError, KeyError, FieldError):
        return None
    return action
