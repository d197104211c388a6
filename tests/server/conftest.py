"""A real server in a thread of its own, with the local provider, and clients for several kinds of users."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from fastapi import FastAPI

from skerry.server.access.permissions import Role, Scope
from skerry.server.app import build_app
from skerry.server.context import Context
from skerry.server.run.serve import Server
from skerry.server.settings import Settings
from skerry.server.store import Project, User
from skerry.server.web.document import document
from tests.providers.local.conftest import own_home  # noqa: F401 - a fixture

T = TypeVar("T")


class Operations:
    """The operations of OpenAPI documents."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self._all = [
            (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path, operations)
            for document in documents
            for path, operations in document["paths"].items()
        ]

    def find(self, method: str, path: str) -> tuple[str, dict[str, Any]] | None:
        """The path template of the operation, and its responses. One without parameters comes first, as in the server."""
        for pattern, template, operations in sorted(self._all, key=lambda each: each[1].count("{")):
            if pattern.fullmatch(path) and method in operations:
                return template, operations[method]["responses"]
        return None


_OPERATIONS: list[Operations] = []


def operations(app: FastAPI) -> Operations:
    """Those of every server: made once, since that takes a second."""
    if not _OPERATIONS:
        _OPERATIONS.append(Operations(document(app), document(app, internal=True)))
    return _OPERATIONS[0]


def _check_documented(operations: Operations, answer: httpx2.Response) -> None:
    """Every answer of every test has a status that the OpenAPI document lists for the operation, and its code."""
    method = {"HEAD": "get"}.get(answer.request.method, answer.request.method.lower())
    found = operations.find(method, answer.request.url.path)
    if found is None or answer.status_code in (299, 405):  # 299: that of the muted server
        return
    operation, responses = found
    where = f"{answer.request.method} {operation} answers {answer.status_code}"
    assert str(answer.status_code) in responses, f"{where}, which is not documented"
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        answer.read()
        assert answer.json()["code"] in responses[str(answer.status_code)]["x-codes"], f"{where}: {answer.text}"


class Running:
    """A server that runs; `context` has its parts, to be used through `call`."""

    def __init__(self, home: Path, *, prepare: Callable[[FastAPI], None] | None = None, **options: Any) -> None:
        self._prepare = prepare
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.settings = Settings(
            home=home, port=self._listener.getsockname()[1], **{"rate": 0.0, "sign_in_burst": 500, **options}
        )
        self.url = self.settings.url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self._thread.start()
        assert self._ready.wait(60)
        if self._failure:
            raise self._failure
        self._users: dict[str, tuple[User, str]] = {}

    def _run(self) -> None:
        import uvloop

        try:
            self.app = app = build_app(self.settings)
            if self._prepare is not None:
                self._prepare(app)
            self.server = Server(app, self.settings)
            self.context: Context = app.state.context
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self.loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        serving = asyncio.create_task(self.server._serve([self._listener]))
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.01)
        self._ready.set()
        await serving

    def call(self, work: Callable[[], Any]) -> Any:
        """What a coroutine function returns, run in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(60)

    def user(self, name: str, *, admin: bool = False) -> User:
        """The user of that name, made at the first call."""
        return self._account(name, admin)[0]

    def key(self, name: str, *, scopes: frozenset[Scope] = frozenset(Scope), project: str | None = None) -> str:
        """A new API key of that user."""
        user = self.user(name)
        made = self.call(lambda: self.context.store.keys.add(user.id, "test", scopes=scopes, project_id=project))
        return str(made[1])

    def _account(self, name: str, admin: bool = False) -> tuple[User, str]:
        if name not in self._users:
            user = self.call(lambda: self.context.store.users.add(name, admin=admin or name == "admin"))
            _, text = self.call(lambda: self.context.store.keys.add(user.id, "test"))
            self._users[name] = (user, text)
        return self._users[name]

    def project(self, name: str) -> Project:
        """The personal project of a user."""
        user = self.user(name)
        return self.context.store.accounts.projects_of(user.id)[0]

    def share(self, project: Project, name: str, role: Role) -> None:
        user = self.user(name)
        self.call(lambda: self.context.store.projects.set_member(project.id, user.id, role))

    def client_of(self, name: str | None) -> httpx2.Client:
        """A client with a key of that user, who is made if there is none ("admin" is an administrator); None: nobody."""
        headers = {} if name is None else {"authorization": f"Bearer {self._account(name)[1]}"}
        check = functools.partial(_check_documented, operations(self.app))
        hooks = {"response": [check]}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, event_hooks=hooks)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(60)
        self._listener.close()
        assert not self._thread.is_alive()
        if self._failure:
            raise self._failure


@pytest.fixture(scope="session")
def server(skerry_home: Path) -> Iterator[Running]:
    """One server for all tests of this directory; its sandboxes are in the SKERRY_HOME of the run."""
    running = Running(skerry_home)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def owner(server: Running) -> Iterator[httpx2.Client]:
    with server.client_of("owner") as client:
        yield client


@pytest.fixture(scope="module")
def box(owner: httpx2.Client) -> Iterator[str]:
    """A sandbox of `owner` that a module shares."""
    made = owner.post("/v1/sandboxes", json={}).raise_for_status().json()["id"]
    yield made
    owner.delete(f"/v1/sandboxes/{made}")
