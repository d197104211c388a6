"""Every route and every opener of the wire × everybody who may ask: generated from the tables, expected by hand.

The routes are asked over HTTP at a server whose handlers only say that they were reached, so that asking to destroy a
sandbox does not destroy it; all that comes before a handler is the real thing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from skerry import wire
from skerry.sdk import AsyncSandbox
from skerry.server.access.permissions import OPENERS, ROUTES, Action, Role, accounts, action_of, sandboxes, streams
from skerry.server.app import build_app
from skerry.server.projects import names as naming
from skerry.server.settings import Settings
from skerry.server.web.guard import GuardedRoute, GuardedSocket
from skerry.wire import Frame, Type
from tests.server.conftest import Running

REACHED = 299

ACTORS = ("anonymous", "stranger", "reader", "writer", "owner", "admin")
READS = {"sandbox.read", "volume.read", "snapshot.read", "project.read"}
WRITES = READS | {"sandbox.write", "volume.write", "snapshot.write"}
OWNS = WRITES | {"sandbox.destroy", "sandbox.admin", "project.manage"}
MEMBERS = {"reader": READS, "writer": WRITES, "owner": OWNS}
EVERYBODY = {"open", "user.self", "user.manage", "template.read", "template.build"}
"""What whoever is signed in may do, in no project."""


def expected(actor: str, method: str, path: str) -> str:
    """`reached`, or the code of the refusal; written down here, and not taken from the server's own check."""
    rule = ROUTES[method, path]
    if rule.action == "open":
        return "reached"
    if actor == "anonymous":
        return "UNAUTHENTICATED"
    if actor == "admin":
        return "reached"
    if rule.on == "nothing":
        return "reached" if rule.action in EVERYBODY else "PERMISSION_DENIED"
    if rule.on == "projects":  # a list of what one sees, which may be nothing
        return "reached"
    if actor == "stranger":
        missing = {"sandbox": "SANDBOX", "snapshot": "SNAPSHOT", "volume": "VOLUME"}.get(rule.on)
        return f"{missing}_NOT_FOUND" if missing else "NOT_FOUND"
    return "reached" if rule.action in MEMBERS[actor] else "PERMISSION_DENIED"


def mute(app: FastAPI) -> None:
    """Let every handler say no more than that it was reached."""

    async def reached(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": 4299})
        else:
            await Response(status_code=REACHED)(scope, receive, send)

    for route in app.router.routes:
        assert isinstance(route, GuardedRoute | GuardedSocket)
        route.app = reached


@pytest.fixture(scope="module")
def muted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("muted"), prepare=mute)
    project = running.project("owner")
    running.share(project, "reader", Role.READ)
    running.share(project, "writer", Role.WRITE)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def names(muted: Running) -> Iterator[dict[str, str]]:
    """What stands for the variable parts of paths: things of the owner's project."""
    project, context = muted.project("owner"), muted.context

    async def make() -> tuple[AsyncSandbox, str]:
        sandbox = await AsyncSandbox.create(context.providers.default, labels=naming.labels(project, None))
        await context.sandboxes.adopt(sandbox, project)
        snapshot = await sandbox.snapshots.create()
        await context.holdings.note_snapshot(project, sandbox.provider, snapshot)
        await context.holdings.volumes().create_volume(naming.inner(project, "shared"), size=None, temporary=False)
        return sandbox, snapshot.id

    sandbox, snapshot = muted.call(make)
    yield {"sandbox": sandbox.id, "snapshot": snapshot, "volume": "shared", "project": project.id}

    async def remove() -> None:
        await sandbox.destroy()
        await context.holdings.snapshots(sandbox).delete_snapshot(snapshot)
        await context.holdings.volumes().delete_volume(naming.inner(project, "shared"))

    muted.call(remove)


def fill(path: str, names: dict[str, str]) -> str:
    filled = re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: names.get(match[1], "1"), path)
    rule_needs_project = "{project}" not in path
    return filled + (f"?project={names['project']}" if rule_needs_project else "")


def outcome(answer: httpx2.Response) -> str:
    return "reached" if answer.status_code == REACHED else str(answer.json()["code"])


def open_socket(server: Running, path: str, key: str | None) -> str:
    """`reached`, or the code of the refusal."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with connect(f"ws{server.url.removeprefix('http')}{path}", additional_headers=headers) as socket:
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=20)
            return "reached" if socket.close_code == 4299 else f"closed with {socket.close_code}"
    except InvalidStatus as refusal:
        return str(json.loads(bytes(refusal.response.body or b"{}"))["code"])


@pytest.mark.parametrize("actor", ACTORS)
def test_every_route_lets_in_exactly_whom_it_should(muted: Running, names: dict[str, str], actor: str) -> None:
    user = None if actor == "anonymous" else actor
    key = None if user is None else muted.key(user)
    wrong = {}
    with muted.client_of(user) as client:
        for method, path in ROUTES:
            where = fill(path, names)
            found = open_socket(muted, where, key) if method == "WS" else outcome(client.request(method, where))
            if found != (wanted := expected(actor, method, path)):
                wrong[method, path] = (found, wanted)
            if method == "GET" and (head := client.head(where)).status_code != client.get(where).status_code:
                wrong["HEAD", path] = (str(head.status_code), wanted)
    assert wrong == {}


def test_who_made_a_sandbox_reaches_what_ends_it_and_no_more(muted: Running, names: dict[str, str]) -> None:
    """A member who may write, and is its maker."""
    store, sandbox = muted.context.store, names["sandbox"]
    noted = store.accounts.owned("sandbox", sandbox)
    assert noted is not None and noted.made_by is None
    muted.share(muted.project("owner"), "maker", Role.WRITE)
    muted.call(lambda: store.ownership.put([dataclasses.replace(noted, made_by=muted.user("maker").id)]))
    key, ends, wrong = muted.key("maker"), set[tuple[str, str]](), {}
    with muted.client_of("maker") as client:
        for (method, path), rule in ROUTES.items():
            where = fill(path, names)
            found = open_socket(muted, where, key) if method == "WS" else outcome(client.request(method, where))
            wanted = "reached" if rule.action == "sandbox.destroy" else expected("writer", method, path)
            if rule.action == "sandbox.destroy":
                ends.add((method, path))
            if found != wanted:
                wrong[method, path] = (found, wanted)
        muted.share(muted.project("owner"), "maker", Role.READ)
        assert outcome(client.delete(f"/v1/sandboxes/{sandbox}")) == "PERMISSION_DENIED"
    assert wrong == {}
    assert ends == {
        ("DELETE", "/v1/sandboxes/{sandbox}"),
        ("DELETE", "/v1/provider/sandboxes/{sandbox}"),
        ("POST", "/v1/provider/sandboxes/{sandbox}/lease"),
    }


def test_a_stranger_is_told_of_every_thing_what_is_told_of_nothing(muted: Running, names: dict[str, str]) -> None:
    nothing = {"sandbox": "sb-0000000000", "snapshot": "sn-0000000000", "volume": "other", "project": "pj-" + "0" * 16}
    checked = 0
    with muted.client_of("stranger") as client:
        for (method, path), rule in ROUTES.items():
            if method == "WS" or rule.on not in nothing or f"{{{rule.on}}}" not in path:
                continue
            theirs, missing = (client.request(method, fill(path, which)) for which in (names, nothing))
            swapped = missing.text.replace(nothing[rule.on], names[rule.on])
            assert (theirs.status_code, theirs.text) == (missing.status_code, swapped), (method, path)
            checked += 1
    assert checked > 50


def test_a_read_key_of_an_owner_reaches_what_a_reader_does(muted: Running, names: dict[str, str]) -> None:
    from skerry.server.access.permissions import Scope as KeyScope

    key = muted.key("owner", scopes=frozenset({KeyScope.READ}))
    with httpx2.Client(base_url=muted.url, headers={"authorization": f"Bearer {key}"}) as client:
        for (method, path), rule in ROUTES.items():
            if method == "WS":
                continue
            may = rule.action in READS | {"open", "user.self", "template.read"}
            found = outcome(client.request(method, fill(path, names)))
            assert found == ("reached" if may else "PERMISSION_DENIED"), (method, path)


def test_every_change_of_the_matrix_is_in_the_audit(muted: Running, names: dict[str, str]) -> None:
    with muted.client_of("writer") as client:
        client.post(f"/v1/sandboxes/{names['sandbox']}/exec", headers={"x-request-id": "audited-1"})
        client.delete(f"/v1/sandboxes/{names['sandbox']}", headers={"x-request-id": "audited-2"})
    found = {entry.request_id: entry for entry in muted.call(lambda: muted.context.store.audit.before(None, limit=50))}
    assert (found["audited-1"].actor, found["audited-1"].outcome) == ("user:writer", "ok")
    assert (found["audited-2"].action, found["audited-2"].outcome) == ("sandbox.destroy", "PERMISSION_DENIED")


CHANGES_NOTHING = {
    ("POST", "/v1/session"): "open",
    ("DELETE", "/v1/session"): "user.self",
    ("POST", "/v1/tickets"): "user.self",
    ("DELETE", "/v1/projects/{project}/membership"): "project.read",
    ("POST", "/v1/sandboxes/{sandbox}/files/search"): "sandbox.read",  # a question too long for a query
    ("PUT", "/v1/provider/holders/{holder}"): "user.self",  # says that one is still there
    ("PUT", "/v1/signed/{sandbox_id}"): "open",  # the signature is the permission
}
"""Requests that are no GET, and yet need no more than to be there."""


def test_what_changes_something_needs_more_than_to_look() -> None:
    looks = READS | {"open", "user.self", "template.read"}
    found = {
        key: str(rule.action) for key, rule in ROUTES.items() if key[0] not in ("GET", "WS") and rule.action in looks
    }
    assert found == CHANGES_NOTHING


def test_no_two_parts_of_the_table_speak_of_the_same_route() -> None:
    parts = (accounts.RULES, sandboxes.RULES, streams.RULES)
    assert len(ROUTES) == sum(len(part) for part in parts)


def test_a_rule_without_a_route_keeps_the_server_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTES, ("POST", "/v1/forgotten"), ROUTES["GET", "/health"])
    with pytest.raises(RuntimeError, match="forgotten"):
        build_app(Settings(home=tmp_path))


def test_a_route_without_a_rule_cannot_be_made() -> None:
    from skerry.server.web.guard import Routes

    with pytest.raises(RuntimeError, match="no rule"):
        Routes("test").get("/v1/unruled")


def test_nothing_is_mounted_past_the_guard(muted: Running) -> None:
    routes: list[BaseRoute] = list(muted.server.config.app.router.routes)  # type: ignore[union-attr]
    assert {type(route) for route in routes} == {GuardedRoute, GuardedSocket}


# -- the wire

P = b"/tmp/permissions"
OPENING: dict[Type, wire.Message] = {
    Type.START: wire.Start(argv=(b"/bin/true",)),
    Type.ATTACH: wire.Attach(id=999),
    Type.SIGNAL: wire.Signal(id=999, signal=1),
    Type.PROCESSES: wire.Processes(),
    Type.ENV: wire.Env(),
    Type.LIFE: wire.Life(deadline_ms=86_400_000),  # later than it would end: sooner is in test_makers.py
    Type.STATS: wire.Stats(),
    Type.READ: wire.Read(path=b"/etc/hostname"),
    Type.WRITE: wire.Write(path=P),
    Type.LIST: wire.ListDir(path=b"/tmp"),
    Type.STAT: wire.Stat(path=b"/tmp"),
    Type.MKDIR: wire.MkDir(path=P),
    Type.REMOVE: wire.Remove(path=P),
    Type.RENAME: wire.Rename(path=P, target=P + b"2"),
    Type.CHMOD: wire.Chmod(path=P, mode=0o600),
    Type.CHOWN: wire.Chown(path=P),
    Type.SYMLINK: wire.Symlink(path=P, target=b"x"),
    Type.COPY: wire.Copy(path=P, target=P + b"3"),
    Type.HASH: wire.Hash(path=b"/etc/hostname"),
    Type.RESIZE: wire.Resize(id=999, cols=80, rows=24),
    Type.WATCH: wire.Watch(path=b"/tmp"),
    Type.PORTS: wire.Ports(),
    Type.DIAL: wire.Dial(port=1),
    Type.PACK: wire.Pack(path=b"/etc/hostname"),
    Type.UNPACK: wire.Unpack(path=P),
}
LOOKS = {Type.PROCESSES, Type.STATS, Type.READ, Type.LIST, Type.STAT, Type.HASH, Type.WATCH, Type.PORTS, Type.PACK}
"""What a reader may open; the rest changes something."""


def test_every_opener_of_the_protocol_is_in_the_table() -> None:
    openers = {kind for kind in Type if kind >= 0x10}
    assert openers == OPENERS.keys() == OPENING.keys()


def test_what_an_opener_says_decides_where_it_should() -> None:
    def action(message: wire.Message, left: float | None = None) -> Action | None:
        assert message.type is not None
        return action_of(Frame(1, message.type, 0, message.encode()), left)

    assert action(wire.Attach(id=1, flags=wire.AttachFlags.VIEW)) is Action.SANDBOX_READ
    assert action(wire.Life(end=1)) is Action.SANDBOX_DESTROY
    assert action(wire.Life(deadline_ms=600_000)) is Action.SANDBOX_DESTROY
    assert action(wire.Life(deadline_ms=600_000), left=601.5) is Action.SANDBOX_DESTROY
    assert action(wire.Life(deadline_ms=600_000), left=600.5) is Action.SANDBOX_WRITE
    assert action(wire.Life(deadline_ms=600_000, idle_ms=1), left=1.0) is Action.SANDBOX_DESTROY
    assert action(wire.Life()) is Action.SANDBOX_READ
    assert action_of(Frame(1, 0x7F, 0, b"")) is None
    assert action_of(Frame(1, Type.LIFE, 0, b"\xff")) is None


def refused(socket: ClientConnection, message: wire.Message) -> bool:
    """Whether an opener is refused, once an answer to a later one has come."""
    assert message.type is not None
    socket.send(wire.encode_frame(1, message.type, message.encode()))
    socket.send(wire.encode_frame(3, Type.PROCESSES, wire.Processes().encode()))
    decoder, denied = wire.Decoder(), False
    while True:
        data = socket.recv(timeout=20)
        assert isinstance(data, bytes)
        for frame in decoder.feed(data):
            if frame.stream == 1 and frame.type == Type.ERROR:
                denied = denied or wire.Failure.decode(frame.payload).code == "PERMISSION_DENIED"
            if frame.stream == 3 and frame.flags & wire.FINAL:
                return denied


@pytest.mark.parametrize("actor", ["reader", "writer", "owner", "admin"])
def test_every_opener_is_let_through_for_whom_it_should(server: Running, box: str, actor: str) -> None:
    project = server.project("owner")
    server.share(project, "reader", Role.READ)
    server.share(project, "writer", Role.WRITE)
    headers = {"authorization": f"Bearer {server.key(actor)}"}
    url = f"ws{server.url.removeprefix('http')}/v1/sandboxes/{box}/wire"
    wrong = []
    for kind, message in OPENING.items():
        with connect(url, additional_headers=headers, subprotocols=["skerry.wire.1"]) as socket:  # type: ignore[list-item]
            if refused(socket, message) != (actor == "reader" and kind not in LOOKS):
                wrong.append(kind.name)
    assert wrong == []


@pytest.mark.parametrize(("actor", "status"), [(None, 401), ("stranger", 404)])
def test_nobody_else_opens_the_wire_at_all(server: Running, box: str, actor: str | None, status: int) -> None:
    headers = {} if actor is None else {"authorization": f"Bearer {server.key(actor)}"}
    with pytest.raises(InvalidStatus) as refusal:
        connect(f"ws{server.url.removeprefix('http')}/v1/sandboxes/{box}/wire", additional_headers=headers)
    assert refusal.value.response.status_code == status
