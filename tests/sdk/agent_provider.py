"""A provider that starts the real agent as a plain process of this machine: no isolation, all of the protocol."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from skerry.core.errors import ConnectionLost, SandboxFailed, SandboxNotFound
from skerry.core.models import Event, SandboxInfo, SandboxSpec, State, Usage
from skerry.core.provider import Channel, Deadlines, Leases, Provider
from skerry.wire import Boot, Type, encode_frame

AGENT = Path(__file__).resolve().parents[2] / "agent/build/agent"


@dataclass
class Box:
    info: SandboxInfo
    directory: Path
    token: bytes
    process: subprocess.Popen[bytes]


class AgentProvider(Provider, Deadlines, Leases):
    name = "agent"

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.stored: dict[str, list[Event]] = {}

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        directory = Path(tempfile.mkdtemp(prefix="sk-agent-", dir="/var/tmp"))
        work = directory / "work"
        work.mkdir()
        directory.chmod(0o755)
        token = os.urandom(16)
        now = time.time()
        info = SandboxInfo(
            id=f"sb-{os.urandom(5).hex()}",
            name=spec.name,
            provider=self.name,
            state=State.RUNNING,
            created_at=now,
            started_at=now,
            last_active_at=None,
            expires_at=now + spec.timeout,
            resources=spec.resources,
            template=spec.template,
            isolation="none",
            network=spec.network,
            user="root",
            workdir=str(work),
            purpose=spec.purpose,
            metadata=spec.metadata,
            labels=spec.labels,
            env_names=tuple(spec.env),
            leased_to=None,
            reason=None,
        )
        boot = Boot(
            token=token,
            env=tuple(f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in spec.env.items()),
            workdir=os.fsencode(work),
            user="root",
            deadline_ms=round(spec.timeout * 1000),
        )
        self.boxes[info.id] = Box(info, directory, token, self._start(directory, boot))
        self.stored[info.id] = [
            Event(cursor=cursor, type=type, sandbox_id=info.id, time=now)
            for cursor, type in enumerate(("created", "ready"), start=1)
        ]
        return info

    def _start(self, directory: Path, boot: Boot) -> subprocess.Popen[bytes]:
        read, write = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener, os.fdopen(read), os.fdopen(write, "wb") as out:
            listener.bind(str(directory / "agent.sock"))
            listener.listen()
            process = subprocess.Popen(
                [AGENT, str(listener.fileno()), str(read)], pass_fds=(listener.fileno(), read), cwd="/"
            )
            out.write(encode_frame(0, Type.BOOT, boot.encode()))
        return process

    def _box(self, sandbox_id: str) -> Box:
        if sandbox_id not in self.boxes:
            raise SandboxNotFound(f"no sandbox {sandbox_id}")
        return self.boxes[sandbox_id]

    async def get(self, sandbox_id: str) -> SandboxInfo:
        box = self._box(sandbox_id)
        code = box.process.poll()
        if code is None:
            return box.info
        if code == 0:
            raise SandboxNotFound(f"sandbox {sandbox_id} has ended")
        return replace(box.info, state=State.FAILED, reason=f"the agent ended with {code}")

    async def find(self, id_or_name: str) -> SandboxInfo:
        for box in self.boxes.values():
            if id_or_name in (box.info.id, box.info.name):
                return await self.get(box.info.id)
        raise SandboxNotFound(f"no sandbox {id_or_name}")

    async def list(self) -> list[SandboxInfo]:
        return [await self.get(sandbox_id) for sandbox_id in self.boxes]

    async def destroy(self, sandbox_id: str) -> None:
        box = self.boxes.pop(sandbox_id, None)
        if box is not None:
            box.process.terminate()
            box.process.wait(10)
            shutil.rmtree(box.directory)

    async def dial(self, sandbox_id: str, port: int = 0) -> Channel:
        info = await self.get(sandbox_id)
        if info.state is State.FAILED:
            raise SandboxFailed(f"sandbox {sandbox_id} failed: {info.reason}")
        box = self._box(sandbox_id)
        try:
            stream = await anyio.connect_unix(box.directory / "agent.sock")
        except OSError as error:
            raise ConnectionLost(f"no connection to {sandbox_id}: {error}") from error
        return Channel(stream=stream, token=box.token)

    async def usage(self, sandbox_id: str) -> Usage:
        self._box(sandbox_id)
        return Usage(
            cpu_percent=0.0,
            cpu_seconds=0.0,
            memory_used=1,
            memory_total=None,
            disk_used=None,
            disk_total=None,
            network_rx=0,
            network_tx=0,
            pids=1,
            pids_limit=None,
        )

    async def events(self, sandbox_id: str, since: int = 0) -> list[Event]:
        self._box(sandbox_id)
        return [event for event in self.stored[sandbox_id] if event.cursor > since]

    async def sweep(self) -> list[str]:
        return []

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        box = self._box(sandbox_id)
        box.info = replace(box.info, expires_at=time.time() + seconds)
        return box.info

    async def record_lease(self, sandbox_id: str) -> None:
        box = self._box(sandbox_id)
        box.info = replace(box.info, leased_to=os.getpid())
