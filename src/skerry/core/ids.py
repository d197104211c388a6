"""Ids of sandboxes, snapshots and what a server keeps: made, and told apart from names, here alone.

An id is a prefix that says of what it is, and 8 to 40 of a-z 0-9, so that it fits into a host name.
"""

from __future__ import annotations

import re
import secrets

SANDBOX, SNAPSHOT, USER, PROJECT, WEBHOOK = "sb-", "sn-", "us-", "pj-", "wh-"
RESERVED_HINT = f"{SANDBOX} or {SNAPSHOT}"
"""With what no name may begin, for hints."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
"""Without the digits that people read as letters."""
_SANDBOX, _SNAPSHOT, _PROJECT = (re.compile(rf"{prefix}[a-z0-9]{{8,40}}") for prefix in (SANDBOX, SNAPSHOT, PROJECT))


def new_id(prefix: str, length: int = 16) -> str:
    return prefix + _random(length)


def new_sandbox_id() -> str:
    return new_id(SANDBOX, 10)


def new_snapshot_id() -> str:
    return new_id(SNAPSHOT, 10)


def new_slug() -> str:
    """Six characters that tell projects apart in the names at a provider."""
    return _random(6)


def is_sandbox_id(text: str) -> bool:
    return _SANDBOX.fullmatch(text) is not None


def is_snapshot_id(text: str) -> bool:
    return _SNAPSHOT.fullmatch(text) is not None


def is_project_id(text: str) -> bool:
    return _PROJECT.fullmatch(text) is not None


def looks_like_id(name: str) -> bool:
    """Whether a name could be taken for the id of a sandbox or a snapshot, so that nothing may be called so."""
    return name.startswith((SANDBOX, SNAPSHOT))


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
