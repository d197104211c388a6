"""Functions instead of methods: `client = create_client(…)`, then `create_sandbox(client, …)`.

They block, and return the same objects as `Sandbox.create`, so both styles mix. `skerry.functional.aio` has the same
for `await`; tools/gen_sync.py makes this file of that one.
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
from skerry.functional.client import SandboxClient, create_client
from skerry.sdk import (
    BytesCallback,
    Command,
    CommandOptions,
    CreateOptions,
    ExecOptions,
    ExecStream,
    LogCallback,
    PlaceOptions,
    ResourceOptions,
    Sandbox,
    SandboxPage,
    SandboxPath,
    SandboxStatus,
    Snapshots,
    TemplateOption,
    Terminal,
    Volumes,
)


def create_sandbox(client: SandboxClient, **options: Unpack[CreateOptions]) -> Sandbox:
    """As `Sandbox.create`, with the same options."""
    return Sandbox.create(client.provider, **options)


def get_sandbox(client: SandboxClient, id_or_name: str) -> Sandbox:
    """Raises SandboxNotFound."""
    return Sandbox.find(id_or_name, provider=client.provider)


def find_sandbox(client: SandboxClient, id_or_name: str) -> Sandbox:
    """The same as `get_sandbox`. Raises SandboxNotFound."""
    return Sandbox.find(id_or_name, provider=client.provider)


def list_sandboxes(
    client: SandboxClient,
    *,
    state: State | str | None = None,
    metadata: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> SandboxPage:
    """All sandboxes that have this state, these metadata and these labels."""
    return Sandbox.list(state=state, metadata=metadata, labels=labels, provider=client.provider)


def start_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.start()


def stop_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.stop()


def restart_sandbox(
    sandbox: Sandbox,
    *,
    env: Mapping[str, str] | None = None,
    resources: ResourceOptions | None = None,
    template: TemplateOption | None = None,
) -> SandboxInfo:
    return sandbox.restart(env=env, resources=resources, template=template)


def reset_sandbox(sandbox: Sandbox, *, hard: bool = False) -> SandboxInfo:
    return sandbox.reset(hard=hard)


def pause_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.pause()


def resume_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.resume()


def archive_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.archive()


def recover_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.recover()


def reconnect_sandbox(sandbox: Sandbox) -> None:
    sandbox.reconnect()


def clone_sandbox(sandbox: Sandbox, *, name: str | None = None) -> Sandbox:
    return sandbox.clone(name=name)


def delete_sandbox(sandbox: Sandbox) -> None:
    sandbox.destroy()


def get_info(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.info()


def get_status(sandbox: Sandbox) -> SandboxStatus:
    return sandbox.status()


def get_resource_usage(sandbox: Sandbox) -> Usage:
    return sandbox.usage()


def set_resource_limits(
    sandbox: Sandbox,
    *,
    cpu: float | None = None,
    cpu_percent: float | None = None,
    memory: int | str | None = None,
    disk: int | str | None = None,
    pids: int | None = None,
) -> SandboxInfo:
    return sandbox.set_limits(cpu=cpu, cpu_percent=cpu_percent, memory=memory, disk=disk, pids=pids)


def wait_for_state(sandbox: Sandbox, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
    return sandbox.wait_for_state(state, timeout=timeout)


def execute_command(sandbox: Sandbox, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
    return sandbox.exec(command, **options)


def execute_stream(sandbox: Sandbox, command: Command, **options: Unpack[ExecOptions]) -> ExecStream:
    return sandbox.exec_stream(command, **options)


def code_run(
    sandbox: Sandbox,
    code: str,
    *,
    language: str | None = None,
    check: bool = False,
    **options: Unpack[CommandOptions],
) -> CodeResult:
    return sandbox.code_run(code, language=language, check=check, **options)


def create_pty(
    sandbox: Sandbox,
    command: Command | None = None,
    *,
    cols: int = 80,
    rows: int = 24,
    **options: Unpack[PlaceOptions],
) -> Terminal:
    return sandbox.terminals.create(command, cols=cols, rows=rows, **options)


def run_command_via_pty(sandbox: Sandbox, command: Command, *, on_data: BytesCallback | None = None) -> ExecResult:
    return sandbox.run_command_via_pty(command, on_data=on_data)


def upload_file(sandbox: Sandbox, local: str | os.PathLike[str], path: SandboxPath) -> None:
    sandbox.files.upload(local, path)


def download_file(sandbox: Sandbox, path: SandboxPath, local: str | os.PathLike[str]) -> None:
    sandbox.files.download(path, local)


def upload_files(sandbox: Sandbox, files: Iterable[tuple[str | os.PathLike[str], SandboxPath]]) -> None:
    sandbox.files.upload_all(files)


def download_files(sandbox: Sandbox, files: Iterable[tuple[SandboxPath, str | os.PathLike[str]]]) -> None:
    sandbox.files.download_all(files)


def list_files(sandbox: Sandbox, path: SandboxPath = ".") -> list[FileInfo]:
    return sandbox.files.list(path)


def read_file(sandbox: Sandbox, path: SandboxPath) -> bytes:
    return sandbox.files.read(path)


def write_file(sandbox: Sandbox, path: SandboxPath, content: bytes | str) -> FileInfo:
    return sandbox.files.write(path, content)


def delete_file(sandbox: Sandbox, path: SandboxPath) -> None:
    sandbox.files.remove(path)


def create_directory(sandbox: Sandbox, path: SandboxPath) -> FileInfo:
    return sandbox.files.mkdir(path)


def get_env(sandbox: Sandbox, name: str) -> str | None:
    return sandbox.env.get(name)


def set_env(sandbox: Sandbox, name: str, value: str) -> None:
    sandbox.env.set(name, value)


def create_snapshot(
    sandbox: Sandbox, name: str | None = None, *, description: str = "", on_log: LogCallback | None = None
) -> SnapshotInfo:
    return sandbox.snapshots.create(name, description=description, on_log=on_log)


def list_snapshots(sandbox: Sandbox) -> list[SnapshotInfo]:
    return sandbox.snapshots.list()


def restore_snapshot(sandbox: Sandbox, snapshot: str | SnapshotInfo) -> SandboxInfo:
    return sandbox.snapshots.restore(snapshot)


def delete_snapshot(client: SandboxClient, snapshot: str | SnapshotInfo) -> None:
    """Raises SnapshotNotFound."""
    Snapshots(client.provider).delete(snapshot)


def get_volume(client: SandboxClient, name: str, *, create: bool = False, size: int | str | None = None) -> VolumeInfo:
    """The volume with that name; with `create`, a missing one is made. Raises VolumeNotFound."""
    return Volumes(client.provider).get(name, create=create, size=size)


def list_volumes(client: SandboxClient) -> list[VolumeInfo]:
    return Volumes(client.provider).list()


def delete_volume(client: SandboxClient, volume: str | VolumeInfo) -> None:
    """Raises VolumeNotFound, Conflict while a sandbox has it."""
    Volumes(client.provider).delete(volume if isinstance(volume, str) else volume.name)


__all__ = [
    "SandboxClient",
    "archive_sandbox",
    "clone_sandbox",
    "code_run",
    "create_client",
    "create_directory",
    "create_pty",
    "create_sandbox",
    "create_snapshot",
    "delete_file",
    "delete_sandbox",
    "delete_snapshot",
    "delete_volume",
    "download_file",
    "download_files",
    "execute_command",
    "execute_stream",
    "find_sandbox",
    "get_env",
    "get_info",
    "get_resource_usage",
    "get_sandbox",
    "get_status",
    "get_volume",
    "list_files",
    "list_sandboxes",
    "list_snapshots",
    "list_volumes",
    "pause_sandbox",
    "read_file",
    "reconnect_sandbox",
    "recover_sandbox",
    "reset_sandbox",
    "restart_sandbox",
    "restore_snapshot",
    "resume_sandbox",
    "run_command_via_pty",
    "set_env",
    "set_resource_limits",
    "start_sandbox",
    "stop_sandbox",
    "upload_file",
    "upload_files",
    "wait_for_state",
    "write_file",
]
