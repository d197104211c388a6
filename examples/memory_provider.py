"""A provider in one file, as small as the contract allows: state in memory, the agent as a plain child process.

NO ISOLATION. What runs in these "sandboxes" runs on your machine with your rights. It is for learning how a provider is
made and for testing without privileges; it refuses what it cannot honour (limits, a closed network, another user).
"""

from __future__ import annotations

import asyncio
import getpass
import importlib.resources
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from skerry import AsyncSandbox
from skerry.core.errors import Conflict, ConnectionLost, SandboxFailed, SandboxNotFound, Unsupported
from skerry.core.models import Event, Resources, SandboxInfo, SandboxSpec, State, Usage
from skerry.core.provider import AGENT_PORT, Channel, Deadlines, Leases, Provider
from skerry.wire import Boot, Type, encode_frame

AGENT = Path(str(importlib.resources.files("skerry"))) / "_bin/agent"


@dataclass
class Box:
    """One sandbox: what is known about it, its directory and its agent."""

    info: SandboxInfo
    spec: SandboxSpec
    directory: Path
    token: bytes
    process: subprocess.Popen[bytes]


class MemoryProvider(Provider, Deadlines, Leases):
    """Sandboxes without isolation, known to this process only."""

    name = "memory"

    def __init__(self, agent: Path = AGENT) -> None:
        self.agent = agent
        self.boxes: dict[str, Box] = {}

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        self._refuse(spec)
        for box in self._live():
            if spec.idempotency_key and spec.idempotency_key == box.spec.idempotency_key:
                if spec != box.spec:
                    raise Conflict("the idempotency key was used with other options", hint="use a new key")
                return box.info
            if spec.name and spec.name == box.info.name:
                raise Conflict(f"the name {spec.name} is taken by {box.info.id}", hint="destroy it, or use another")
        directory = Path(tempfile.mkdtemp(prefix="sk-memory-", dir="/var/tmp"))  # short: it holds a unix socket
        directory.chmod(0o755)
        (directory / "work").mkdir()
        info, token = _describe(spec, directory / "work"), os.urandom(16)
        boot = Boot(
            token=token,
            env=tuple(os.fsencode(f"{name}={value}") for name, value in spec.env.items()),
            workdir=os.fsencode(info.workdir),
            user=info.user,
            deadline_ms=round(spec.timeout * 1000),
        )
        self.boxes[info.id] = Box(info, spec, directory, token, self._start(directory, boot))
        return info

    def _refuse(self, spec: SandboxSpec) -> None:
        """What is asked for and cannot be had is an error, before anything is made."""
        usual = SandboxSpec()
        if spec.network != "open":
            hint = 'pass network="open" to accept that'
            raise Unsupported("the memory provider cannot close the network", option="network", hint=hint)
        if spec.resources != Resources():
            raise Unsupported("the memory provider has no limits", option="resources")
        if spec.isolation not in (None, "none"):
            raise Unsupported("the memory provider does not isolate", option="isolation")
        for option in ("template", "user", "workdir"):
            if getattr(spec, option) != getattr(usual, option):
                raise Unsupported(f"the memory provider cannot choose the {option}", option=option)

    def _start(self, directory: Path, boot: Boot) -> subprocess.Popen[bytes]:
        """The agent gets a listening socket and a pipe with its BOOT frame, as descriptors named on its command line."""
        read, write = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener, os.fdopen(read), os.fdopen(write, "wb") as out:
            listener.bind(str(directory / "agent.sock"))
            listener.listen()
            fds = (listener.fileno(), read)
            process = subprocess.Popen([self.agent, *map(str, fds)], pass_fds=fds, cwd="/")
            out.write(encode_frame(0, Type.BOOT, boot.encode()))
        return process

    def _live(self) -> list[Box]:
        """All but those whose lifetime has ended: their agents exited with 0, and nothing of them stays."""
        for box in [box for box in self.boxes.values() if box.process.poll() == 0]:
            self._remove(box)
        return list(self.boxes.values())

    def _remove(self, box: Box) -> None:
        del self.boxes[box.info.id]
        box.process.terminate()
        box.process.wait()
        shutil.rmtree(box.directory)

    def _box(self, sandbox_id: str) -> Box:
        for box in self._live():
            if box.info.id == sandbox_id:
                return box
        raise SandboxNotFound(f"no sandbox {sandbox_id}")

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _current(self._box(sandbox_id))

    async def find(self, id_or_name: str) -> SandboxInfo:
        for box in self._live():
            if id_or_name in (box.info.id, box.info.name):
                return _current(box)
        raise SandboxNotFound(f"no sandbox {id_or_name}")

    async def list(self) -> list[SandboxInfo]:
        return [_current(box) for box in self._live()]

    async def destroy(self, sandbox_id: str) -> None:
        if box := self.boxes.get(sandbox_id):
            self._remove(box)

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        if port != AGENT_PORT:
            raise Unsupported("the memory provider opens only the agent's channel", option="port")
        box = self._box(sandbox_id)
        try:
            return Channel(stream=await anyio.connect_unix(box.directory / "agent.sock"), token=box.token)
        except OSError as error:
            info = await self.get(sandbox_id)  # SandboxNotFound when it ended in the meantime
            if info.state is State.FAILED:
                raise SandboxFailed(f"sandbox {sandbox_id} failed: {info.reason}") from error
            raise ConnectionLost(f"no connection to {sandbox_id}: {error}") from error

    async def usage(self, sandbox_id: str) -> Usage:
        proc = Path(f"/proc/{self._box(sandbox_id).process.pid}")
        ticks = sum(map(int, (proc / "stat").read_text().rsplit(")", 1)[1].split()[11:15]))  # its own, its children's
        pages = int((proc / "statm").read_text().split()[1])
        return Usage(
            cpu_percent=0.0,
            cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
            memory_used=pages * os.sysconf("SC_PAGE_SIZE"),
            memory_total=None,
            disk_used=None,
            disk_total=None,
            network_rx=0,
            network_tx=0,
            pids=1,
            pids_limit=None,
        )

    async def events(self, sandbox_id: str, since: int = 0) -> list[Event]:
        at = self._box(sandbox_id).info.created_at
        happened = enumerate(("created", "ready"), start=1)
        return [Event(cursor=n, type=type, sandbox_id=sandbox_id, time=at) for n, type in happened if n > since]

    async def sweep(self) -> list[str]:
        before = list(self.boxes)
        self._live()
        return [sandbox_id for sandbox_id in before if sandbox_id not in self.boxes]

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        box = self._box(sandbox_id)
        box.info = replace(box.info, expires_at=time.time() + seconds)
        return box.info

    async def record_lease(self, sandbox_id: str) -> None:
        box = self._box(sandbox_id)
        box.info = replace(box.info, leased_to=os.getpid())


def _describe(spec: SandboxSpec, workdir: Path) -> SandboxInfo:
    now = time.time()
    return SandboxInfo(
        id=f"sb-{os.urandom(5).hex()}",
        name=spec.name,
        provider=MemoryProvider.name,
        state=State.RUNNING,
        created_at=now,
        started_at=now,
        last_active_at=None,
        expires_at=now + spec.timeout,
        resources=Resources(),
        template=spec.template,
        isolation="none",
        network="open",
        user=getpass.getuser(),
        workdir=str(workdir),
        purpose=spec.purpose,
        metadata=spec.metadata,
        labels=spec.labels,
        env_names=tuple(spec.env),
        leased_to=None,
        reason=None,
    )


def _current(box: Box) -> SandboxInfo:
    code = box.process.poll()
    return box.info if code is None else replace(box.info, state=State.FAILED, reason=f"the agent ended with {code}")


async def main() -> None:
    async with await AsyncSandbox.create(MemoryProvider(), network="open") as sandbox:
        result = await sandbox.exec("echo hello from process $$")
        print(result.stdout, end="")
        print("isolation:", (await sandbox.info()).isolation)


if __name__ == "__main__":
    asyncio.run(main())
