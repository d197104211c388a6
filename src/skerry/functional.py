"""Functions instead of methods: `client = create_client(…)`, then `create_sandbox(client, …)`, `stop_sandbox(sandbox)`.

They block, and return the same objects as `Sandbox.create`, so both styles mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from skerry._model import Model
from skerry.core import CodeResult, ExecResult, Provider, SandboxInfo, SnapshotInfo, VolumeInfo, registry
from skerry.http import Api, Login, find_login
from skerry.sdk import (
    BytesCallback,
    Command,
    CreateOptions,
    ExecOptions,
    LogCallback,
    Sandbox,
    SandboxPage,
    Volumes,
)


class SandboxClient(Model, kw_only=False):
    """Where sandboxes are made. `api` is the low-level HTTP client of a server."""

    provider: Provider
    login: Login | None = None

    @property
    def api(self) -> Api:
        """A new HTTP client, which the caller closes. Raises Unauthenticated where there is no server."""
        return Api(self.login or find_login())


def create_client(
    *, api_key: str | None = None, api_url: str | None = None, target: str | None = None
) -> SandboxClient:
    """A client of a server, by default that of SKERRY_URL or `skerry login`; without any, of this machine.

    `target` is the project that new sandboxes belong to.

    Raises Unauthenticated for a key or a target without a server, InvalidArgument.
    """
    if api_url is None and api_key is None and target is None and registry.default() == "local":
        return SandboxClient(registry.provider("local"))
    login = find_login(api_url, api_key, target)
    return SandboxClient(registry.factory("remote")(login.url, api_key=login.key, project=login.project), login)


def create_sandbox(client: SandboxClient, **options: Unpack[CreateOptions]) -> Sandbox:
    """As `Sandbox.create`, with the same options."""
    return Sandbox.create(client.provider, **options)


def get_sandbox(client: SandboxClient, id_or_name: str) -> Sandbox:
    """Raises SandboxNotFound."""
    return Sandbox.find(id_or_name, provider=client.provider)


def list_sandboxes(client: SandboxClient, *, labels: Mapping[str, str] | None = None) -> SandboxPage:
    """All sandboxes that have these labels."""
    return Sandbox.list(labels=labels, provider=client.provider)


def start_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.start()


def stop_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.stop()


def archive_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.archive()


def recover_sandbox(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.recover()


def delete_sandbox(sandbox: Sandbox) -> None:
    sandbox.destroy()


def execute_command(sandbox: Sandbox, command: Command, **options: Unpack[ExecOptions]) -> ExecResult:
    return sandbox.exec(command, **options)


def code_run(
    sandbox: Sandbox, code: str, *, language: str = "python", timeout: float | None = None, check: bool = False
) -> CodeResult:
    return sandbox.code_run(code, language=language, timeout=timeout, check=check)


def run_command_via_pty(sandbox: Sandbox, command: Command, *, on_data: BytesCallback | None = None) -> ExecResult:
    return sandbox.run_command_via_pty(command, on_data=on_data)


def create_snapshot(sandbox: Sandbox, name: str | None = None, *, on_log: LogCallback | None = None) -> SnapshotInfo:
    return sandbox.snapshots.create(name, on_log=on_log)


def get_or_create_volume(client: SandboxClient, name: str) -> VolumeInfo:
    return Volumes(client.provider).get(name, create=True)
