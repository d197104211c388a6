"""Docker through its API: create, start, and exec, whose output and exit code are read."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from skerry.core.config import limits

IMAGE = "skerry-bench:latest"
WORKDIR = "/workspace"
TRUE = ("/bin/true",)


class DockerBox:
    """A container whose first process only sleeps."""

    def __init__(self, container: DockerContainer) -> None:
        self._container = container

    async def run_true(self) -> None:
        await self._exec(TRUE)

    async def first_byte(self) -> None:
        run = await self._container.exec(["/bin/echo", "here"])
        async with run.start(detach=False) as stream:
            if await stream.read_out() is None:
                raise OSError("the process wrote nothing")

    async def upload(self, local: Path, name: str) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(local, name)
        await self._container.put_archive(WORKDIR, archive.getvalue())  # type: ignore[no-untyped-call]

    async def download(self, name: str, local: Path) -> None:
        with await self._container.get_archive(f"{WORKDIR}/{name}") as tar:
            member = tar.extractfile(name)
            if member is None:
                raise OSError(f"{name} is not a file")
            with local.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)

    async def remove(self, name: str) -> None:
        await self._exec(("/bin/rm", f"{WORKDIR}/{name}"))

    async def _exec(self, argv: Sequence[str]) -> None:
        run = await self._container.exec(list(argv))
        async with run.start(detach=False) as stream:
            while await stream.read_out() is not None:
                pass
        code = (await run.inspect())["ExitCode"]
        if code != 0:
            raise OSError(f"{argv[0]} exited with {code}")


class DockerBackend:
    """Containers without a network and with the limits a sandbox has by default."""

    name = "docker"
    errors: tuple[type[Exception], ...] = (DockerError, aiohttp.ClientError, OSError)

    def __init__(self, docker: Docker) -> None:
        self._docker = docker
        bounds = limits()
        self._config: dict[str, Any] = {
            "Image": IMAGE,
            "Cmd": ["/bin/sleep", "86400"],
            "WorkingDir": WORKDIR,
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "Memory": bounds.memory,
                "MemorySwap": bounds.memory,
                "NanoCpus": int(bounds.cpu * 10**9),
                "PidsLimit": bounds.pids,
            },
        }

    @asynccontextmanager
    async def box(self) -> AsyncIterator[DockerBox]:
        container = await self._docker.containers.create(self._config)
        try:
            await container.start()
            box = DockerBox(container)
            await box.run_true()
            yield box
        finally:
            await container.delete(force=True)
