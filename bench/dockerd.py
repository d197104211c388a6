"""A separate Docker daemon: installed if missing, started in its own directory, and removed without a trace.

It runs in its own mount namespace, so its mounts end with it, and it cannot see a containerd of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
from aiodocker import Docker, DockerError

POLICY = Path("/usr/sbin/policy-rc.d")
CONTAINERD = Path("/run/containerd")
CGROUPS = Path("/sys/fs/cgroup")
GROUP = "skerry-bench-docker"
"""The cgroup that all our containers are in."""
PROGRAMS = ("dockerd", "containerd", "containerd-shim-runc-v2", "containerd-shim", "runc")
START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
_SCRIPT = f'mount -t tmpfs tmpfs {CONTAINERD} && exec setpriv --pdeathsig TERM dockerd --config-file "$0"'


class DockerUnavailable(Exception):
    """The daemon could not be started; the message says why."""


def install() -> None:
    """Install Debian's docker.io unless there is a dockerd; no service is started. Raises DockerUnavailable."""
    if shutil.which("dockerd") is None:
        with _no_services():
            apt("install", "-y", "--no-install-recommends", "docker.io")


def apt(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get, once more with fresh lists if it fails. Raises DockerUnavailable."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (arguments, ("update",), arguments):
        command = ["apt-get", "-q", *attempt]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        if attempt == arguments and done.returncode == 0:
            return
    raise DockerUnavailable(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


@contextmanager
def _no_services() -> Iterator[None]:
    """Debian's way to keep packages from starting services while they are installed."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


@asynccontextmanager
async def daemon(directory: Path) -> AsyncIterator[Docker]:
    """A running daemon with everything of it under `directory`, and a client of it. Raises DockerUnavailable."""
    problems = []
    for driver in ("overlay2", "vfs"):
        try:
            process = _start(directory / driver, driver)
        except OSError as error:
            raise DockerUnavailable(f"dockerd cannot be started: {error}") from error
        try:
            connector = aiohttp.UnixConnector(str(_socket(directory / driver)), limit=0)
            async with connector, Docker(url="http://docker", connector=connector) as docker:
                if await _ready(docker, process):
                    yield docker
                    return
            problems.append(f"{driver}: {(directory / driver / 'log').read_text(errors='replace').strip()[-300:]}")
        finally:
            await asyncio.shield(asyncio.to_thread(_stop, process, directory / driver))
    raise DockerUnavailable("dockerd did not start: " + "; ".join(problems))


def _socket(directory: Path) -> Path:
    return directory / "docker.sock"


def _start(directory: Path, driver: str) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True)
    config = {
        "data-root": str(directory / "data"),
        "exec-root": str(directory / "exec"),
        "pidfile": str(directory / "pid"),
        "hosts": [f"unix://{_socket(directory)}"],
        "bridge": "none",
        "iptables": False,
        "ip-forward": False,
        "ip-masq": False,
        "storage-driver": driver,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{GROUP}",
        "log-level": "error",
    }
    (directory / "daemon.json").write_text(json.dumps(config))
    CONTAINERD.mkdir(exist_ok=True)
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _SCRIPT, str(directory / "daemon.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the terminal is ours to handle
        )


async def _ready(docker: Docker, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            await docker.version()
        except (DockerError, aiohttp.ClientError, OSError):
            await asyncio.sleep(0.05)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes], directory: Path) -> None:
    """End the daemon, what it started, and its directory. Its containers end with it; if it hangs, by force."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    clear(directory)


def clear(directory: Path) -> None:
    """Remove what is left of a daemon in `directory` that has ended, in this run or in one that was killed."""
    deadline = time.monotonic() + 10
    while (pids := _remaining(directory)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for top in CGROUPS.glob(f"**/{GROUP}"):
        for path, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(path)
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):
        CONTAINERD.rmdir()  # if it was not there before, it is empty


def _remaining(directory: Path) -> list[int]:
    """Processes that are surely ours: in our cgroup, or a part of Docker with our directory on its command line."""
    pids, marker = set(), os.fsencode(directory)
    for procs in CGROUPS.glob(f"**/{GROUP}/**/cgroup.procs"):
        with suppress(OSError):
            pids |= {int(pid) for pid in procs.read_text().split()}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if os.fsdecode(command.partition(bytes(1))[0]).rpartition("/")[2] in PROGRAMS and marker in command:
                pids.add(int(entry.name))
    return sorted(pids)
