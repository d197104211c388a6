"""The image for the containers: a static busybox and nothing else, imported through the API."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from aiodocker import Docker

from bench.docker_ops import IMAGE, WORKDIR
from bench.dockerd import apt

COMMANDS = ("cat", "echo", "rm", "sh", "sleep", "true")


async def import_image(docker: Docker, directory: Path) -> None:
    """What `docker import` does. Raises DockerUnavailable, DockerError."""
    repository, _, tag = IMAGE.partition(":")
    asked = docker._query(
        "images/create",
        "POST",
        params={"fromSrc": "-", "repo": repository, "tag": tag},
        data=_root(_busybox(directory)),
        headers={"Content-Type": "application/x-tar"},
    )
    async with asked as response:
        await response.read()
    await docker.images.inspect(IMAGE)


def _busybox(directory: Path) -> bytes:
    """The program of Debian's busybox-static, taken from its package without installing it."""
    directory.mkdir(parents=True, exist_ok=True)
    apt("download", "busybox-static", "-o", "APT::Sandbox::User=root", cwd=directory)
    package = next(directory.glob("busybox-static_*.deb"))
    subprocess.run(["dpkg-deb", "-x", str(package), str(directory)], check=True)
    return next(path for path in directory.rglob("bin/busybox") if path.is_file()).read_bytes()


def _root(busybox: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp", WORKDIR.lstrip("/")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        program = tarfile.TarInfo("bin/busybox")
        program.size, program.mode = len(busybox), 0o755
        tar.addfile(program, io.BytesIO(busybox))
        for command in COMMANDS:
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return archive.getvalue()
