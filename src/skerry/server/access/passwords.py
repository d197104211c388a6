"""Passwords: argon2id in threads, few at a time, since each takes 64 MiB and much of a second."""

from __future__ import annotations

from anyio import CapacityLimiter, to_thread
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from skerry.core import InvalidArgument

SHORTEST, LONGEST = 10, 1024
AT_ONCE = 2

_hasher = PasswordHasher()
_UNKNOWN = _hasher.hash("nobody has this password, since it is checked for nobody")
"""Checked if there is no such user, so that the time reveals nothing."""


class Passwords:
    def __init__(self) -> None:
        self._limiter = CapacityLimiter(AT_ONCE)

    async def hash(self, password: str) -> str:
        """Raises InvalidArgument for a password that is too short or too long."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise InvalidArgument(f"a password has {SHORTEST} to {LONGEST} characters")
        return await to_thread.run_sync(_hasher.hash, password, limiter=self._limiter)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Takes the same time whether or not a password is stored."""
        if len(password) > LONGEST:
            return False
        matches = await to_thread.run_sync(_verify, stored or _UNKNOWN, password, limiter=self._limiter)
        return matches and stored is not None


def _verify(stored: str, password: str) -> bool:
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False
