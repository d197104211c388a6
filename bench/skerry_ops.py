"""Skerry through its SDK, with all isolation on, as any user gets it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skerry import AsyncSandbox, Sandbox
from skerry.core.errors import SkerryError

TRUE = ("/bin/true",)
LIFETIME = 1800.0
"""The lifetime of a sandbox in seconds, if the benchmark is killed."""


class SkerryBox:
    """A sandbox of the `local` provider."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run_true(self) -> None:
        await self._sandbox.exec(TRUE, check=True)

    async def first_byte(self) -> None:
        process = await self._sandbox.processes.spawn(("/bin/echo", "here"))
        async with process.attach() as stream:
            async for _ in stream:
                return
        raise OSError("the process wrote nothing")

    async def upload(self, local: Path, name: str) -> None:
        await self._sandbox.files.upload(local, name)

    async def download(self, name: str, local: Path) -> None:
        await self._sandbox.files.download(name, local)

    async def remove(self, name: str) -> None:
        await self._sandbox.files.remove(name)


class SkerryBackend:
    """Sandboxes; the code that makes one destroys it. They have no lease, which is not part of what is measured."""

    name = "skerry"
    errors: tuple[type[Exception], ...] = (SkerryError, OSError)

    def __init__(self) -> None:
        self.ids: set[str] = set()
        """The ids of all sandboxes made, to look for what is left of them."""

    @asynccontextmanager
    async def box(self) -> AsyncIterator[SkerryBox]:
        sandbox = await AsyncSandbox.create(timeout=LIFETIME)
        try:
            self.ids.add(sandbox.id)
            await sandbox.exec(TRUE, check=True)
            yield SkerryBox(sandbox)
        finally:
            await sandbox.destroy()

    def blocking_create(self) -> float:
        """Seconds from create to the first command done, through the blocking API."""
        start = time.perf_counter()
        sandbox = Sandbox.create(timeout=LIFETIME)
        try:
            self.ids.add(sandbox.id)
            sandbox.exec(TRUE, check=True)
            return time.perf_counter() - start
        finally:
            sandbox.destroy()

    def blocking_exec(self, sandbox: Sandbox) -> float:
        """Seconds of one more command, through the blocking API."""
        start = time.perf_counter()
        sandbox.exec(TRUE, check=True)
        return time.perf_counter() - start
