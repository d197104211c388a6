"""A provider in one file, as small as the contract allows: state in memory, the agent as a plain child process.

NO ISOLATION. What runs in these "sandboxes" runs on your machine with your rights. It is for learning how a provider is
made and for testing without privileges; it refuses what it cannot honour (limits, a closed network, another user).
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

import skerry
from skerry.core import (
    AGENT_PORT,
    Channel,
    Deadlines,
    Event,
    Leases,
    Provider,
    Resources,
    SandboxInfo,
    SandboxSpec,
    State,
    Usage,
    errors,
    new_sandbox_id,
)
from skerry.wire import Boot, Type, encode_frame

AGENT = Path(skerry.__file__).parent / "_bin/agent"


@dataclass
class Box:
    info: SandboxInfo
    spec: SandboxSpec
    directory: Path
    token: bytes
    process: subprocess.Popen[bytes]


class MemoryProvider(Provider, Deadlines, Leases):
    """Sandboxes without isolation, known to this process only."""

    name = "memory"

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        self._refuse(spec)
        for box in await self._live():
            if spec.idempotency_key and spec.idempotency_key == box.spec.idempotency_key:
                if spec != box.spec:
                    raise errors.Conflict("the idempotency key was used with other options", hint="use a new key")
                return box.info
            if spec.name and spec.name == box.info.name:
                raise errors.Conflict(f"the name {spec.name} is taken by {box.info.id}")
        directory = Path(tempfile.mkdtemp(prefix="sk-memory-", dir="/var/tmp"))  # short: it holds a unix socket
        directory.chmod(0o755)  # users other than root must reach the working directory
        (directory / "work").mkdir()
        info = _describe(spec, directory / "work")
        boot = Boot(
            token=os.urandom(16),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in {**spec.env, **spec.secrets}.items()),
            workdir=os.fsencode(info.workdir),
            user=info.user,
            deadline_ms=round(spec.timeout * 1000),
        )
        self.boxes[info.id] = Box(info, spec, directory, boot.token, self._start(directory, boot))
        return info

    def _refuse(self, spec: SandboxSpec) -> None:
        """Raises Unsupported for options that it cannot honour, before anything is made."""
        only = {"network": "open", "isolation": spec.isolation and "none"}  # None: whatever there is
        only["on_timeout"] = spec.on_timeout and "destroy"
        for option in ("network", "isolation", "resources", "template", "user", "workdir", "on_timeout"):
            can = only.get(option, getattr(SandboxSpec(), option))
            if getattr(spec, option) != can:
                raise errors.Unsupported(f"the memory provider can only do {option}={can!r}", option=option)

    def _start(self, directory: Path, boot: Boot) -> subprocess.Popen[bytes]:
        """The agent gets a listening socket and a pipe with its BOOT frame: descriptors named on its command line."""
        read, write = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener, os.fdopen(read), os.fdopen(write, "wb") as out:
            listener.bind(str(directory / "agent.sock"))
            listener.listen()
            fds = (listener.fileno(), read)
            process = subprocess.Popen([AGENT, *map(str, fds)], pass_fds=fds, cwd="/")
            out.write(encode_frame(0, Type.BOOT, boot.encode()))
        return process

    async def _live(self) -> list[Box]:
        """All but those whose lifetime has ended: their agents exited with 0, and nothing of them is left."""
        for box in [box for box in self.boxes.values() if box.process.poll() == 0]:
            await self.destroy(box.info.id)
        return list(self.boxes.values())

    async def _box(self, sandbox_id: str) -> Box:
        await self._live()
        if sandbox_id not in self.boxes:
            raise errors.SandboxNotFound(f"no sandbox {sandbox_id}")
        return self.boxes[sandbox_id]

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _current(await self._box(sandbox_id))

    async def find(self, id_or_name: str) -> SandboxInfo:
        named = [box.info.id for box in await self._live() if box.info.name == id_or_name]
        return await self.get(*named or [id_or_name])

    async def list(self) -> list[SandboxInfo]:
        return [_current(box) for box in await self._live()]

    async def destroy(self, sandbox_id: str) -> None:
        if box := self.boxes.pop(sandbox_id, None):
            box.process.terminate()
            box.process.wait()
            shutil.rmtree(box.directory)

    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        if port != AGENT_PORT:
            raise errors.Unsupported("the memory provider opens only the agent's channel", option="port")
        box = await self._box(sandbox_id)
        try:
            return Channel(stream=await anyio.connect_unix(box.directory / "agent.sock"), token=box.token)
        except OSError as error:
            info = await self.get(sandbox_id)  # SandboxNotFound when it ended in the meantime
            kind = errors.SandboxFailed if info.state is State.FAILED else errors.ConnectionLost
            raise kind(f"no connection to {sandbox_id}: {info.reason or error}") from error

    async def usage(self, sandbox_id: str) -> Usage:
        box = await self._box(sandbox_id)
        stats = list(_stats(box.process.pid))
        seconds = sum(int(ticks) for fields in stats for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        return Usage(
            cpu_percent=100 * seconds / max(0.001, time.time() - box.info.created_at),
            cpu_seconds=seconds,
            memory_used=sum(int(fields[21]) for fields in stats) * os.sysconf("SC_PAGE_SIZE"),
            **dict.fromkeys(("network_rx", "network_tx"), 0),  # the agent knows more about network and disk
            pids=len(stats),
            **dict.fromkeys(("memory_total", "disk_used", "disk_total", "pids_limit")),
        )

    async def events(self, sandbox_id: str, since: int = 0) -> list[Event]:
        at = (await self._box(sandbox_id)).info.created_at
        both = [Event(cursor=n + 1, type=t, sandbox_id=sandbox_id, time=at) for n, t in enumerate(("created", "ready"))]
        return both[since:]

    async def sweep(self) -> list[str]:
        return sorted(set(self.boxes) - {box.info.id for box in await self._live()})

    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        box = await self._box(sandbox_id)
        box.info = replace(box.info, expires_at=time.time() + seconds)
        return box.info

    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        box = await self._box(sandbox_id)
        prepared = box.info.prepared or (box.spec.leased and not held)
        box.info = replace(box.info, leased_to=os.getpid() if held else None, prepared=prepared)


def _describe(spec: SandboxSpec, workdir: Path) -> SandboxInfo:
    now = time.time()
    return SandboxInfo(
        id=new_sandbox_id(),
        provider=MemoryProvider.name,
        state=State.RUNNING,
        **dict.fromkeys(("created_at", "started_at"), now),
        expires_at=now + spec.timeout,
        resources=Resources(),
        isolation="none",
        user=getpass.getuser(),
        workdir=str(workdir),
        env_names=tuple(spec.env),
        **dict.fromkeys(("last_active_at", "leased_to", "reason")),
        **{name: getattr(spec, name) for name in ("name", "template", "network", "purpose", "metadata", "labels")},
        timeout=spec.timeout,
        on_timeout_asked=spec.on_timeout,
    )


def _current(box: Box) -> SandboxInfo:
    code = box.process.poll()
    return box.info if code is None else replace(box.info, state=State.FAILED, reason=f"the agent ended with {code}")


def _stats(pid: int) -> Iterator[list[str]]:
    """The fields of /proc/PID/stat after the name, of a process and all below it; one may end while we look."""
    try:
        stat, children = (Path(f"/proc/{pid}/{file}").read_text() for file in ("stat", f"task/{pid}/children"))
    except OSError:
        return
    yield stat.rsplit(")", 1)[1].split()
    for child in children.split():
        yield from _stats(int(child))


async def main() -> None:
    async with await skerry.AsyncSandbox.create(MemoryProvider(), network="open") as sandbox:
        print((await sandbox.exec("echo hello")).stdout + "isolation:", (await sandbox.info()).isolation)


if __name__ == "__main__":
    anyio.run(main)
