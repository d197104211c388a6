"""Who may end a sandbox: owners of its project and whoever made it, by whatever way it comes to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from websockets.sync.client import connect

from skerry import wire
from skerry.providers.remote import RemoteProvider
from skerry.sdk import Sandbox
from skerry.server.access.permissions import Role
from skerry.server.store import Project, Store
from skerry.wire import Type
from tests.server.conftest import Running

HOLDER = "0123456789abcdef-holder"


@pytest.fixture(scope="module")
def shared(server: Running, owner: httpx2.Client) -> Project:
    """A project of `owner` in which `hand` may write."""
    made = owner.post("/v1/projects", json={"name": "workshop"}).raise_for_status().json()["id"]
    project = server.context.store.accounts.project(made)
    assert project is not None
    server.share(project, "hand", Role.WRITE)
    return project


@pytest.fixture
def theirs(owner: httpx2.Client, shared: Project) -> Iterator[str]:
    """A sandbox of the project that `hand` has not made."""
    made = owner.post("/v1/sandboxes", json={}, params={"project": shared.id}).raise_for_status().json()["id"]
    yield made
    owner.delete(f"/v1/sandboxes/{made}")


def denied(answer: httpx2.Response) -> bool:
    return (answer.status_code, answer.json().get("code")) == (403, "PERMISSION_DENIED")


def life(server: Running, credential: str, box: str, message: wire.Life) -> str:
    """What becomes of a LIFE over the wire: `ok`, or the code of its refusal."""
    url = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{box}/wire"
    headers = {"authorization": f"Bearer {credential}"}
    decoder = wire.Decoder()
    with connect(url, additional_headers=headers, subprotocols=["skerry.wire.1"]) as socket:  # type: ignore[list-item]
        socket.send(wire.encode_frame(1, Type.LIFE, message.encode()))
        while True:
            data = socket.recv(timeout=20)
            assert isinstance(data, bytes)
            for frame in decoder.feed(data):
                if frame.stream == 1:
                    return wire.Failure.decode(frame.payload).code if frame.type == Type.ERROR else "ok"


def test_a_member_who_may_write_destroys_what_this_member_made(
    server: Running, owner: httpx2.Client, shared: Project
) -> None:
    where = {"project": shared.id}
    with server.client_of("hand") as hand:
        made = hand.post("/v1/sandboxes", json={"name": "bench"}, params=where).raise_for_status().json()["id"]
        copy = hand.post(f"/v1/sandboxes/{made}/clone", json={}).raise_for_status().json()["id"]
        server.call(server.context.events.look)  # what is reconciled keeps its maker
        assert denied(hand.post(f"/v1/sandboxes/{made}/tokens", json={}))
        assert hand.patch(f"/v1/sandboxes/{made}", json={"timeout": 600}).status_code == 200
        for id in (made, copy):
            assert hand.delete(f"/v1/sandboxes/{id}").status_code == 204


def test_run_and_with_work_for_a_member_who_may_write(server: Running, shared: Project) -> None:
    remote = RemoteProvider(server.url, api_key=server.key("hand"), project=shared.id)
    try:
        with Sandbox.create(remote) as sandbox:
            assert sandbox.exec("echo hi").stdout == "hi\n"
            id = sandbox.id
    finally:
        remote.close()
    with server.client_of("hand") as hand:
        assert hand.get(f"/v1/sandboxes/{id}").status_code == 404
    settings = {"SKERRY_URL": server.url, "SKERRY_API_KEY": server.key("hand"), "SKERRY_PROJECT": "workshop"}
    ran = subprocess.run(
        [sys.executable, "-m", "skerry", "run", "--", "echo", "hi"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hi\n", "")


def test_nobody_else_ends_a_sandbox_by_its_deadline(server: Running, owner: httpx2.Client, theirs: str) -> None:
    token = owner.post(f"/v1/sandboxes/{theirs}/tokens", json={"role": "write"}).json()["token"]
    with server.client_of("hand") as hand, server.client_of(None) as inside:
        inside.headers["authorization"] = f"Bearer {token}"
        for client in (hand, inside):
            assert denied(client.delete(f"/v1/sandboxes/{theirs}"))
            assert denied(client.patch(f"/v1/sandboxes/{theirs}", json={"timeout": 0.2}))
            path = f"/v1/provider/sandboxes/{theirs}/deadline"
            assert denied(client.post(path, json={"seconds": 0.2}))
    for credential in (server.key("hand"), token):
        for message in (wire.Life(deadline_ms=200), wire.Life(end=1), wire.Life(idle_ms=1)):
            assert life(server, credential, theirs, message) == "PERMISSION_DENIED"
    time.sleep(1.5)
    assert owner.post(f"/v1/sandboxes/{theirs}/exec", json={"command": "true"}).status_code == 200


def test_whoever_may_write_lets_a_sandbox_live_longer(server: Running, owner: httpx2.Client, theirs: str) -> None:
    before = owner.get(f"/v1/sandboxes/{theirs}").json()["expires_at"]
    with server.client_of("hand") as hand:
        after = hand.patch(f"/v1/sandboxes/{theirs}", json={"timeout": 7200}).raise_for_status().json()["expires_at"]
        assert after > before + 3000
    assert life(server, server.key("hand"), theirs, wire.Life(deadline_ms=10_800_000)) == "ok"
    remote = RemoteProvider(server.url, api_key=server.key("hand"))
    try:
        sandbox = Sandbox.connect(theirs, provider=remote)
        assert sandbox.set_timeout(14_400).expires_at > after + 6000  # type: ignore[operator]
        sandbox.close()
    finally:
        remote.close()
    assert owner.patch(f"/v1/sandboxes/{theirs}", json={"timeout": 600}).status_code == 200


def test_nobody_else_takes_or_drops_the_lease_of_a_sandbox(server: Running, owner: httpx2.Client, theirs: str) -> None:
    path = f"/v1/provider/sandboxes/{theirs}/lease"
    owner.post(path, json={"held": True, "holder": HOLDER}).raise_for_status()
    token = owner.post(f"/v1/sandboxes/{theirs}/tokens", json={"role": "write"}).json()["token"]
    with server.client_of("hand") as hand, server.client_of(None) as inside:
        inside.headers["authorization"] = f"Bearer {token}"
        for client in (hand, inside):
            for held in (True, False):
                assert denied(client.post(path, json={"held": held, "holder": "x" * 20}))
    lease = server.context.store.accounts.lease("sandbox", theirs)
    assert lease is not None and lease.holder == HOLDER
    owner.post(path, json={"held": False, "holder": HOLDER}).raise_for_status()


def test_a_database_from_before_makers_were_known_opens(tmp_path: Path) -> None:
    """Projects with one owner are that owner's; of sandboxes nobody knows."""
    anyio.run(Store.open(tmp_path / "skerry.db").close)
    import sqlite3

    with sqlite3.connect(tmp_path / "skerry.db") as old:
        old.executescript(
            "ALTER TABLE projects DROP COLUMN made_by; ALTER TABLE belongings DROP COLUMN made_by;"
            "ALTER TABLE belongings DROP COLUMN provider;"
            "PRAGMA user_version=3;"
            "INSERT INTO users (id, name, created_at) VALUES ('us-1', 'mira', 0), ('us-2', 'nia', 0);"
            "INSERT INTO projects (id, slug, name, personal_of, created_at) VALUES"
            " ('pj-1', 'aaaaaa', 'one', NULL, 0), ('pj-2', 'bbbbbb', 'two', NULL, 0);"
            "INSERT INTO members VALUES ('pj-1', 'us-1', 'owner'), ('pj-1', 'us-2', 'write'),"
            " ('pj-2', 'us-1', 'owner'), ('pj-2', 'us-2', 'owner');"
            "INSERT INTO belongings VALUES ('sandbox', 'sb-1', 'pj-1', 'box', 0, NULL);"
        )
    old.close()
    opened = Store.open(tmp_path / "skerry.db", provider="elsewhere")
    try:
        assert {project.id: project.made_by for project in opened.accounts.projects()} == {"pj-1": "us-1", "pj-2": None}
        ((box,),) = [opened.accounts.named("sandbox", "pj-1", "box")]
        assert (box.id, box.made_by, box.provider) == ("sb-1", None, "elsewhere")
    finally:
        anyio.run(opened.close)
