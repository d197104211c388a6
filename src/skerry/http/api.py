"""The server's calls one by one, without a sandbox object: `Api` blocks, `AsyncApi` does not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from skerry.core import (
    Corrupted,
    ExecResult,
    FileInfo,
    InvalidArgument,
    SandboxInfo,
    SkerryError,
    State,
    from_plain,
    result_from_json,
)
from skerry.http.client import AsyncClient, Client
from skerry.http.exchange import Request, idempotent, read_answer
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


def _file(method: str, sandbox: str, what: str, params: Mapping[str, str] | None = None, **given: Any) -> Request:
    return Request(method=method, path=f"{_path(sandbox)}/files{what}", params=params or {}, **given)


def _page(sandbox: str, path: str, cursor: str | None) -> Request:
    return _file("GET", sandbox, "/list", {"path": path} | ({} if cursor is None else {"cursor": cursor}))


def _content(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _path(sandbox: str) -> str:
    if not sandbox or "/" in sandbox or sandbox in (".", ".."):
        raise InvalidArgument(f"{sandbox!r} is not the id or name of a sandbox")
    return f"/v1/sandboxes/{quote(sandbox, safe='')}"


def _info(answer: Any) -> SandboxInfo:
    return _made(SandboxInfo, {"provider": "remote", **answer})


def _entry(answer: Any) -> FileInfo:
    return _made(FileInfo, answer)


def _made(kind: type[T], answer: Any) -> T:
    """Raises Corrupted."""
    try:
        return from_plain(kind, answer, strict=False)
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

    def list_files(self, sandbox: str, path: str = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by name."""
        found: list[FileInfo] = []
        cursor = None
        while True:
            page = self.client.send(_page(sandbox, path, cursor))
            found += map(_entry, page["items"])
            if (cursor := page["cursor"]) is None:
                return found

    def read_file(self, sandbox: str, path: str) -> bytes:
        """Raises FileMissing, IsADirectory."""
        with self.client.stream(_file("GET", sandbox, "", {"path": path})) as response:
            return response.read()

    def write_file(self, sandbox: str, path: str, content: bytes | str) -> FileInfo:
        """The file has its old content or all of the new one; missing directories are made."""
        with self.client.stream(
            _file("PUT", sandbox, "", {"path": path}), content=iter((_content(content),))
        ) as response:
            response.read()
            return _entry(read_answer(response))

    def delete_file(self, sandbox: str, path: str) -> None:
        """Raises FileMissing, NotEmpty for a directory with something in it."""
        self.client.send(_file("DELETE", sandbox, "", {"path": path}))

    def create_directory(self, sandbox: str, path: str) -> FileInfo:
        """Missing directories above it are made, and one that exists is not an error."""
        return _entry(self.client.send(_file("POST", sandbox, "/mkdir", json={"path": path})))

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

    async def list_files(self, sandbox: str, path: str = ".") -> list[FileInfo]:
        """As `Api.list_files`."""
        found: list[FileInfo] = []
        cursor = None
        while True:
            page = await self.client.send(_page(sandbox, path, cursor))
            found += map(_entry, page["items"])
            if (cursor := page["cursor"]) is None:
                return found

    async def read_file(self, sandbox: str, path: str) -> bytes:
        """As `Api.read_file`."""
        async with self.client.stream(_file("GET", sandbox, "", {"path": path})) as response:
            return await response.aread()

    async def write_file(self, sandbox: str, path: str, content: bytes | str) -> FileInfo:
        """As `Api.write_file`."""
        async with self.client.stream(
            _file("PUT", sandbox, "", {"path": path}), content=_once(_content(content))
        ) as response:
            await response.aread()
            return _entry(read_answer(response))

    async def delete_file(self, sandbox: str, path: str) -> None:
        """As `Api.delete_file`."""
        await self.client.send(_file("DELETE", sandbox, "", {"path": path}))

    async def create_directory(self, sandbox: str, path: str) -> FileInfo:
        """As `Api.create_directory`."""
        return _entry(await self.client.send(_file("POST", sandbox, "/mkdir", json={"path": path})))

    async def aclose(self) -> None:
        await self.client.aclose()
