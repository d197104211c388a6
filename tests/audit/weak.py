"""Providers that lack something: the audit must notice what each of them lets through."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

from skerry import AsyncSandbox
from skerry.core import Resources, SandboxInfo, SandboxSpec, Unsupported
from skerry.providers.local import LocalProvider

LISTEN = """
import socket, sys, time
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0" + sys.argv[1])
unix.listen()
print("up", flush=True)
time.sleep(600)
"""


class Leaky(LocalProvider):
    """Brings a marked file of the machine into each sandbox, and a socket that the machine listens on."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        info = await super().create(spec)
        sandbox = await AsyncSandbox.get(info.id, provider=self)
        for path in Path("/var/tmp").glob("skerry-audit-*"):
            with suppress(FileNotFoundError):  # that of an audit beside this one, which has just ended
                await sandbox.files.write(str(path), path.read_bytes())
            process = await sandbox.processes.spawn(["python3", "-c", LISTEN, path.name])
            async for chunk in process:
                assert chunk.data == b"up\n"
                break
        await sandbox.close()
        return info


class WithoutPython(LocalProvider):
    """Its sandboxes find no program."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        return await super().create(dataclasses.replace(spec, env={**spec.env, "PATH": "/nowhere"}))


class OnlyPython(LocalProvider):
    """Its sandboxes find no program but Python."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        info = await super().create(dataclasses.replace(spec, env={**spec.env, "PATH": "/opt/only"}))
        sandbox = await AsyncSandbox.get(info.id, provider=self)
        link = "/bin/mkdir /opt/only && /bin/ln -s /usr/bin/python3 /opt/only"
        await sandbox.exec(["/bin/sh", "-c", link], user="root", check=True)
        await sandbox.close()
        return info


class WithoutLimits(LocalProvider):
    """It can limit neither disks nor processes."""

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        for name in ("disk", "pids"):
            if getattr(spec.resources, name) is not None:
                raise Unsupported(f"no limit of {name} here", option=f"resources.{name}")
        assert isinstance(spec.resources, Resources)
        return await super().create(spec)
