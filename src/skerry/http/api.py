"""The server's calls one by one, without a sandbox object: `Api` blocks, `AsyncApi` does not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from skerry.core import (
    Corrupted,
    ExecResult,
    InvalidArgument,
    SandboxInfo,
    SkerryError,
    State,
    from_plain,
    result_from_json,
)
from skerry.http.client import AsyncClient, Client
from skerry.http.exchange import Request, idempotent
from skerry.http.login import Login

T = TypeVar("T")
WAIT_STEP = 30.0
"""Seconds that one request waits for a state; a longer wait takes several requests."""


def _create(options: Mapping[str, object], project: str | None) -> Request:
    params = {} if project is None else {"project": project}
    return Request(method="POST", path="/v1/sandboxes", params=params, json=dict(options), headers=idempotent())


def _verb(sandbox: str, verb: str, body: Mapping[str, object] | None = None) -> Request:
    return Request(method="POST", path=f"{_path(sandbox)}/{verb}", json=None if body is None else dict(body))


def _exec(sandbox: str, command: str | Sequence[str], options: Mapping[str, object]) -> Request:
    given = command if isinstance(command, str) else list(command)
    kept = {name: value for name, value in options.items() if value is not None}
    # The command has its own timeout, or none: nobody else ends it. TCP notices a server that is gone.
    return replace(_verb(sandbox, "exec", {"command": given, **kept}), timeout=None)


def _wait(sandbox: str, state: State | str, seconds: float) -> Request:
    params = {"state": str(state), "timeout": f"{max(0.001, seconds):g}"}
    return Request(method="GET", path=f"{_path(sandbox)}/wait", params=params, timeout=seconds + 30)


def _path(sandbox: str) -> str:
    if not sandbox or "/" in sandbox or sandbox in (".", ".."):
        raise InvalidArgument(f"{sandbox!r} is not the id or name of a sandbox")
    return f"/v1/sandboxes/{quote(sandbox, safe='')}"


def _info(answer: Any) -> SandboxInfo:
    """Raises Corrupted."""
    try:
        return from_plain(SandboxInfo, {"provider": "remote", **answer}, strict=False)
    except (SkerryError, TypeError) as error:
        raise Corrupted(f"the server's answer makes no sense: {error}") from error


def _result(answer: Any) -> ExecResult:
    """Raises Corrupted."""
    try:
        return result_from_json(answer)
    except (TypeError, ValueError) as error:
        raise Corrupted(f"the server's answer makes no sense: {error!r}") from error


class Api:
    """Raises the same errors as the sandbox object; ConnectionLost where the server is not reached."""

    def __init__(self, login: Login | None = None) -> None:
        """Without `login`, the environment and `skerry login` decide."""
        self.client = Client(login)

    def create(self, options: Mapping[str, object] | None = None) -> SandboxInfo:
        """`options` are those of `Sandbox.create`, as JSON.

        After a lost answer the client asks again: nothing is made twice.
        """
        return _info(self.client.send(_create(options or {}, self.client.login.project)))

    def get(self, sandbox: str) -> SandboxInfo:
        """By id or name."""
        return _info(self.client.send(Request(method="GET", path=_path(sandbox))))

    def start(self, sandbox: str) -> SandboxInfo:
        return _info(self.client.send(_verb(sandbox, "start")))

    def stop(self, sandbox: str) -> SandboxInfo:
        return _info(self.client.send(_verb(sandbox, "stop")))

    def delete(self, sandbox: str) -> None:
        self.client.send(Request(method="DELETE", path=_path(sandbox)))

    def execute_command(
        self,
        sandbox: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """A string goes to the shell, a list is the arguments."""
        options = {"cwd": cwd, "env": None if env is None else dict(env), "timeout": timeout}
        return _result(self.client.send(_exec(sandbox, command, options)))

    def wait_for_state(self, sandbox: str, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
        """Raises Timeout if it is in another state after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return _info(self.client.send(_wait(sandbox, state, min(left, WAIT_STEP))))
            except TimeoutError:
                if left <= WAIT_STEP:
                    raise

    def close(self) -> None:
        self.client.close()


class AsyncApi:
    """As `Api`; belongs to the event loop it is used in."""

    def __init__(self, login: Login | None = None) -> None:
        self.client = AsyncClient(login)

    async def create(self, options: Mapping[str, object] | None = None) -> SandboxInfo:
        """As `Api.create`."""
        return _info(await self.client.send(_create(options or {}, self.client.login.project)))

    async def get(self, sandbox: str) -> SandboxInfo:
        return _info(await self.client.send(Request(method="GET", path=_path(sandbox))))

    async def start(self, sandbox: str) -> SandboxInfo:
        return _info(await self.client.send(_verb(sandbox, "start")))

    async def stop(self, sandbox: str) -> SandboxInfo:
        return _info(await self.client.send(_verb(sandbox, "stop")))

    async def delete(self, sandbox: str) -> None:
        await self.client.send(Request(method="DELETE", path=_path(sandbox)))

    async def execute_command(
        self,
        sandbox: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """As `Api.execute_command`."""
        options = {"cwd": cwd, "env": None if env is None else dict(env), "timeout": timeout}
        return _result(await self.client.send(_exec(sandbox, command, options)))

    async def wait_for_state(self, sandbox: str, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
        """As `Api.wait_for_state`."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return _info(await self.client.send(_wait(sandbox, state, min(left, WAIT_STEP))))
            except TimeoutError:
                if left <= WAIT_STEP:
                    raise

    async def aclose(self) -> None:
        await self.client.aclose()
