"""Functions for `await` instead of methods: `client = create_client(…)`, then `await create_sandbox(client, …)`.

They return the same objects as `AsyncSandbox.create`, so both styles mix.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Unpack

from skerry.core import (
    CodeResult,
    ExecResult,
    FileInfo,
    SandboxInfo,
    SnapshotInfo,
    State,
    Usage,
    VolumeInfo,
)
from skerry.functional.client import SandboxClient as SandboxClient
from skerry.functional.client import create_client as create_client
from skerry.sdk import (
    AsyncExecStream,
    AsyncSandbox,
    AsyncSnapshots,
    AsyncTerminal,
    AsyncVolumes,
    BytesCallback,
    Command,
    CommandOptions,
    CreateOptions,
    ExecOptions,
    LogCallback,
    PlaceOptions,
    ResourceOptions,
    SandboxPage,
    SandboxPath,
    SandboxStatus,
    TemplateOption,
)


async def create_sandbox(client: SandboxClient, **options: Unpack[CreateOptions]) -> AsyncSandbox:
    """As `Sandbox.create`, with the same options."""
    return await AsyncSandbox.create(client.provider, **options)


async def get_sandbox(client: SandboxClient, id_or_name: str) -> AsyncSandbox:
    """Raises SandboxNotFound."""
    return await AsyncSandbox.find(id_or_name, provider=client.provider)


async def find_sandbox(client: SandboxClient, id_or_name: str) -> AsyncSandbox:
    """The same as `get_sandbox`. Raises SandboxNotFound."""
    return await AsyncSandbox.find(id_or_name, provider=client.provider)


async def list_sandboxes(
    client: SandboxClient,
    *,
    state: State | str | None = None,
    metadata: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> SandboxPage:
    """All sandboxes that have this state, these metadata and these labels."""
    return await AsyncSandbox.list(state=state, metadata=metadata, labels=labels, provider=client.provider)


async def start_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.start()


async def stop_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.stop()


async def restart_sandbox(
    sandbox: AsyncSandbox,
    *,
    env: Mapping[str, str] | None = None,
    resources: ResourceOptions | None = None,
    template: TemplateOption | None = None,
) -> SandboxInfo:
    return await sandbox.restart(env=env, resources=resources, template=template)


async def reset_sandbox(sandbox: AsyncSandbox, *, hard: bool = False) -> SandboxInfo:
    return await sandbox.reset(hard=hard)


async def pause_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.pause()


async def resume_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.resume()


async def archive_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.archive()


async def recover_sandbox(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.recover()


async def reconnect_sandbox(sandbox: AsyncSandbox) -> None:
    await sandbox.reconnect()


async def clone_sandbox(sandbox: AsyncSandbox, *, name: str | None = None) -> AsyncSandbox:
    return await sandbox.clone(name=name)


async def delete_sandbox(sandbox: AsyncSandbox) -> None:
    await sandbox.destroy()


async def get_info(sandbox: AsyncSandbox) -> SandboxInfo:
    return await sandbox.info()


async def get_status(sandbox: AsyncSandbox) -> SandboxStatus:
    return await sandbox.status()


async def get_resource_usage(sandbox: AsyncSandbox) -> Usage:
    return await sandbox.usage()


async def set_resource_limits(
    sandbox: AsyncSandbox,
    *,
    cpu: float | None = None,
    cpu_percent: float | None = None,
    memory: int | str | None = None,
    disk: int | str | None = None,
    pids: int | None = None,
) -> SandboxInfo:
    return await sandbox.set_limits(cpu=cpu, cpu_percent=cpu_percent, memory=memory, disk=disk, pids=pids)


async def wait_for_state(sandbox: AsyncSandbox, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
    return await sandbox.wait_for_state(state, timeout=timeout)


async def execute_command(sandbox: AsyncSandbox, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
    return await sandbox.exec(command, **options)


def execute_stream(sandbox: AsyncSandbox, command: Command, **options: Unpack[ExecOptions]) -> AsyncExecStream:
    return sandbox.exec_stream(command, **options)


async def code_run(
    sandbox: AsyncSandbox,
    code: str,
    *,
    language: str | None = None,
    check: bool = False,
    **options: Unpack[CommandOptions],
) -> CodeResult:
    return await sandbox.code_run(code, language=language, check=check, **options)


async def create_pty(
    sandbox: AsyncSandbox,
    command: Command | None = None,
    *,
    cols: int = 80,
    rows: int = 24,
    **options: Unpack[PlaceOptions],
) -> AsyncTerminal:
    return await sandbox.terminals.create(command, cols=cols, rows=rows, **options)


async def run_command_via_pty(
    sandbox: AsyncSandbox, command: Command, *, on_data: BytesCallback | None = None
) -> ExecResult:
    return await sandbox.run_command_via_pty(command, on_data=on_data)


async def upload_file(sandbox: AsyncSandbox, local: str | os.PathLike[str], path: SandboxPath) -> None:
    await sandbox.files.upload(local, path)


async def download_file(sandbox: AsyncSandbox, path: SandboxPath, local: str | os.PathLike[str]) -> None:
    await sandbox.files.download(path, local)


async def upload_files(sandbox: AsyncSandbox, files: Iterable[tuple[str | os.PathLike[str], SandboxPath]]) -> None:
    await sandbox.files.upload_all(files)


async def download_files(sandbox: AsyncSandbox, files: Iterable[tuple[SandboxPath, str | os.PathLike[str]]]) -> None:
    await sandbox.files.download_all(files)


async def list_files(sandbox: AsyncSandbox, path: SandboxPath = ".") -> list[FileInfo]:
    return await sandbox.files.list(path)


async def read_file(sandbox: AsyncSandbox, path: SandboxPath) -> bytes:
    return await sandbox.files.read(path)


async def write_file(sandbox: AsyncSandbox, path: SandboxPath, content: bytes | str) -> FileInfo:
    return await sandbox.files.write(path, content)


async def delete_file(sandbox: AsyncSandbox, path: SandboxPath) -> None:
    await sandbox.files.remove(path)


async def create_directory(sandbox: AsyncSandbox, path: SandboxPath) -> FileInfo:
    return await sandbox.files.mkdir(path)


async def get_env(sandbox: AsyncSandbox, name: str) -> str | None:
    return await sandbox.env.get(name)


async def set_env(sandbox: AsyncSandbox, name: str, value: str) -> None:
    await sandbox.env.set(name, value)


async def create_snapshot(
    sandbox: AsyncSandbox, name: str | None = None, *, description: str = "", on_log: LogCallback | None = None
) -> SnapshotInfo:
    return await sandbox.snapshots.create(name, description=description, on_log=on_log)


async def list_snapshots(sandbox: AsyncSandbox) -> list[SnapshotInfo]:
    return await sandbox.snapshots.list()


async def restore_snapshot(sandbox: AsyncSandbox, snapshot: str | SnapshotInfo) -> SandboxInfo:
    return await sandbox.snapshots.restore(snapshot)


async def delete_snapshot(client: SandboxClient, snapshot: str | SnapshotInfo) -> None:
    """Raises SnapshotNotFound."""
    await AsyncSnapshots(client.provider).delete(snapshot)


async def get_volume(
    client: SandboxClient, name: str, *, create: bool = False, size: int | str | None = None
) -> VolumeInfo:
    """The volume with that name; with `create`, a missing one is made. Raises VolumeNotFound."""
    return await AsyncVolumes(client.provider).get(name, create=create, size=size)


async def list_volumes(client: SandboxClient) -> list[VolumeInfo]:
    return await AsyncVolumes(client.provider).list()


async def delete_volume(client: SandboxClient, volume: str | VolumeInfo) -> None:
    """Raises VolumeNotFound, Conflict while a sandbox has it."""
    await AsyncVolumes(client.provider).delete(volume if isinstance(volume, str) else volume.name)
