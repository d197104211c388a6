"""The interface of what the benchmark measures: anything that runs code in isolation."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class Box(Protocol):
    """One running sandbox or container."""

    async def run_true(self) -> None:
        """Run `/bin/true`; returns when its exit code, 0, is known."""

    async def first_byte(self) -> None:
        """Start a process that writes; returns when its first output is here."""

    async def upload(self, local: Path, name: str) -> None:
        """Put a file into the working directory."""

    async def download(self, name: str, local: Path) -> None:
        """Get a file from the working directory."""

    async def remove(self, name: str) -> None:
        """Remove a file from the working directory."""


class Backend(Protocol):
    """A way to make boxes."""

    @property
    def name(self) -> str: ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a failed call raises; anything else is a bug of the benchmark."""

    def box(self) -> AbstractAsyncContextManager[Box]:
        """A new box. On entry it has answered `/bin/true`; on exit it is destroyed."""
