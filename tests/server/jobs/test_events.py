"""Events of all sandboxes with one cursor: pages, streams, webhooks."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skerry.core.addresses import is_public
from skerry.providers.local import LocalProvider
from skerry.server.access.permissions import Role
from tests.server.conftest import Running


def types(client: httpx2.Client, path: str, **query: Any) -> list[str]:
    return [item["type"] for item in client.get(path, params=query).raise_for_status().json()["items"]]


def follow(client: httpx2.Client, path: str, **headers: str) -> Iterator[dict[str, str]]:
    """The messages of a stream of server-sent events."""
    with client.stream("GET", path, headers={"accept": "text/event-stream", **headers}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                if "event" in fields:
                    yield fields
                fields = {}


def test_what_happens_is_collected_in_order_up_to_the_end(server: Running, owner: httpx2.Client) -> None:
    before = owner.get("/v1/events?since=now").json()["cursor"]
    made = owner.post("/v1/sandboxes", json={}).json()["id"]
    assert types(owner, f"/v1/sandboxes/{made}/events")[0] == "created"
    owner.delete(f"/v1/sandboxes/{made}")
    page = owner.get("/v1/events", params={"since": before}).json()
    mine = [item["type"] for item in page["items"] if item["sandbox_id"] == made]
    assert (mine[0], mine[-1], mine.count("destroyed")) == ("created", "destroyed", 1)
    assert [item["seq"] for item in page["items"]] == sorted(item["seq"] for item in page["items"])
    assert owner.get("/v1/events", params={"since": page["cursor"], "type": "nothing"}).json()["items"] == []


def test_a_cursor_is_past_what_was_not_asked_for(server: Running, owner: httpx2.Client, box: str) -> None:
    """So that nothing is read again and again for somebody who waits for something rare."""
    happen_in(owner, box)
    upto = server.call(server.context.store.events.last)
    page = owner.get("/v1/events", params={"type": "nothing"}).json()
    assert page["items"] == [] and int(page["cursor"]) >= upto


def test_what_happens_past_the_server_is_found_too(server: Running, owner: httpx2.Client, box: str) -> None:
    from skerry import Sandbox

    cursor = owner.get("/v1/events?since=now").json()["cursor"]
    with Sandbox.get(box) as sandbox:
        sandbox.pause()
        answer = owner.get("/v1/events", params={"since": cursor, "type": "paused", "wait": 20}).json()
        assert [item["sandbox_id"] for item in answer["items"]] == [box]
        sandbox.resume()


def test_an_error_over_the_server_tells_its_type_and_its_reason(server: Running, owner: httpx2.Client) -> None:
    box = owner.post("/v1/sandboxes", json={}).raise_for_status().json()["id"]
    provider = server.context.providers.default
    assert isinstance(provider, LocalProvider)
    init = provider.engine.store.read(box).init
    assert init is not None
    init.kill(30)
    path = f"/v1/sandboxes/{box}/events"
    data = owner.get(path, params={"type": "error", "wait": 20}).json()["items"][0]["data"]
    assert (data["type"], data["reason"]) == ("connection-lost", "its first process was killed")
    owner.delete(f"/v1/sandboxes/{box}")


def test_nobody_sees_events_of_others(server: Running, owner: httpx2.Client, box: str) -> None:
    with server.client_of("nosy") as stranger, server.client_of("admin") as admin:
        assert types(stranger, "/v1/events") == []
        assert stranger.get(f"/v1/sandboxes/{box}/events").status_code == 404
        assert stranger.get("/v1/events", params={"project": server.project("owner").id}).status_code == 404
        assert any(item["sandbox_id"] == box for item in admin.get("/v1/events?limit=1000").json()["items"])


def test_a_stream_goes_on_from_the_last_event_id(server: Running, owner: httpx2.Client) -> None:
    cursor = owner.get("/v1/events?since=now").json()["cursor"]
    made = owner.post("/v1/sandboxes", json={}).json()["id"]
    stream = follow(owner, f"/v1/events?since={cursor}")
    first = next(stream)
    stream.close()
    assert first["event"] == "created" and json.loads(first["data"])["sandbox_id"] == made
    rest = follow(owner, f"/v1/sandboxes/{made}/events", **{"last-event-id": first["id"]})
    second = next(rest)
    assert int(second["id"]) > int(first["id"])
    owner.delete(f"/v1/sandboxes/{made}")
    assert [item["event"] for item in rest][-1] == "destroyed"


def test_a_stream_ends_when_its_key_is_revoked(server: Running, owner: httpx2.Client) -> None:
    made = owner.post("/v1/keys", json={"scopes": ["read"]}).json()
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {made['key']}"}, timeout=30) as client:
        threading.Timer(0.3, lambda: owner.delete(f"/v1/keys/{made['id']}")).start()
        assert list(follow(client, "/v1/events?since=now&type=nothing")) == []


@pytest.mark.parametrize("path", ["/v1/sandboxes/{box}/events?since=now", "/v1/events?project={project}&since=now"])
def test_a_stream_ends_with_the_right_to_see_it(server: Running, owner: httpx2.Client, box: str, path: str) -> None:
    project = server.project("owner")
    server.share(project, "guest", Role.READ)

    def part() -> None:
        server.call(lambda: server.context.store.projects.set_member(project.id, server.user("guest").id, None))
        happen_in(owner, box)

    with server.client_of("guest") as guest:
        threading.Timer(0.5, part).start()
        assert next(follow(guest, path.format(box=box, project=project.id)), None) is None


def test_who_is_no_administrator_any_more_sees_no_more(server: Running, owner: httpx2.Client) -> None:
    server.user("admin")
    server.user("deputy", admin=True)

    def demote() -> None:
        server.call(lambda: server.context.store.users.change(server.user("deputy").id, admin=False))
        happen(owner)

    with server.client_of("deputy") as deputy:
        threading.Timer(0.5, demote).start()
        seen = next(follow(deputy, "/v1/events?since=now&type=created"), None)
        assert seen is None and deputy.get("/v1/users").status_code == 403


@pytest.mark.parametrize("cursor", ["-1", "x", "1e3", "٣", "9" * 19])
def test_what_is_no_cursor_is_refused(owner: httpx2.Client, cursor: str) -> None:
    assert owner.get("/v1/events", params={"since": cursor}).status_code == 400


def test_what_is_no_longer_kept_does_not_happen_again(tmp_path: Path) -> None:
    """A sandbox that lives for longer than its events are kept, on a server of its own: all of them are pruned."""
    server = Running(tmp_path)
    try:
        with server.client_of("owner") as owner:
            box = owner.post("/v1/sandboxes", json={}).json()["id"]
            happen_in(owner, box)
            cursor = owner.get("/v1/events").json()["cursor"]
            server.call(lambda: server.context.store.events.prune(-60.0))
            happen_in(owner, box)
            page = owner.get("/v1/events").json()
            assert {item["type"] for item in page["items"]} == {"paused", "resumed"} and not page["gap"]
            assert owner.get(f"/v1/events?since={cursor}").json()["gap"] is False
            server.call(lambda: server.context.store.events.prune(-60.0))
            assert owner.get(f"/v1/events?since={cursor}").json()["gap"] is True
            owner.delete(f"/v1/sandboxes/{box}").raise_for_status()
            assert types(owner, "/v1/events") == ["destroyed"]
    finally:
        server.stop()


class Receiver(ThreadingHTTPServer):
    """A webhook's other end: refuses the first `failures` requests, keeps the others."""

    def __init__(self, failures: int = 0, pause: float = 0.0) -> None:
        self.failures, self.refused = failures, 0
        self.taken: list[tuple[dict[str, str], bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                if self.refused < self.failures:
                    self.refused += 1
                    handler.send_error(500)
                    return
                self.taken.append((dict(handler.headers), body))
                time.sleep(pause)
                handler.send_response(204)
                handler.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/hook?x=1"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 30
        while len(self.taken) < count and time.monotonic() < end:
            time.sleep(0.02)
        assert len(self.taken) >= count

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


def idle(server: Running, hook: str) -> None:
    """Wait until there is nothing more to send to a webhook."""
    store, project = server.context.store, server.project("owner").id
    end = time.monotonic() + 30

    async def behind() -> bool:
        found = await store.webhooks.get(project, hook)
        return found is not None and found.since < await store.events.last()

    while server.call(behind):
        assert time.monotonic() < end
        time.sleep(0.02)


def status(client: httpx2.Client, project: str, hook: str) -> str:
    """What became of the first that was sent to a webhook."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        listed = client.get(f"/v1/projects/{project}/webhooks").json()["items"]
        if found := next(item["last_status"] for item in listed if item["id"] == hook):
            return str(found)
        time.sleep(0.05)
    raise AssertionError("nothing was sent")


def happen_in(client: httpx2.Client, box: str) -> None:
    """Let there be events of a sandbox, and be collected."""
    client.post(f"/v1/sandboxes/{box}/pause").raise_for_status()
    client.post(f"/v1/sandboxes/{box}/resume").raise_for_status()
    client.get(f"/v1/sandboxes/{box}/events").raise_for_status()


def happen(client: httpx2.Client) -> None:
    """Let there be events."""
    box = client.post("/v1/sandboxes", json={}).raise_for_status().json()["id"]
    client.delete(f"/v1/sandboxes/{box}").raise_for_status()


@pytest.fixture
def private(server: Running) -> Iterator[None]:
    """Webhooks may reach this machine."""
    object.__setattr__(server.settings, "webhook_private", True)
    yield
    object.__setattr__(server.settings, "webhook_private", False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(failures=1)
    yield receiver
    receiver.stop()


def test_webhooks_are_signed_in_order_and_sent_again_after_a_failure(
    server: Running, owner: httpx2.Client, receiver: Receiver, private: None
) -> None:
    project = server.project("owner").id
    made = owner.post(f"/v1/projects/{project}/webhooks", json={"url": receiver.url, "types": ["created", "destroyed"]})
    hook = made.raise_for_status().json()
    box = owner.post("/v1/sandboxes", json={}).json()["id"]
    owner.delete(f"/v1/sandboxes/{box}")
    receiver.wait_for(2)
    sent = [json.loads(body) for _, body in receiver.taken]
    assert [(item["sandbox_id"], item["type"]) for item in sent] == [(box, "created"), (box, "destroyed")]
    assert receiver.refused == 1
    for headers, body in receiver.taken:
        stamp, _, mac = headers["x-skerry-signature"].partition(",v1=")
        text = stamp.removeprefix("t=").encode() + b"." + body
        assert hmac.compare_digest(mac, hmac.new(hook["secret"].encode(), text, hashlib.sha256).hexdigest())
        assert abs(int(stamp.removeprefix("t=")) - time.time()) < 60
    idle(server, hook["id"])
    listed = owner.get(f"/v1/projects/{project}/webhooks").json()["items"]
    assert "secret" not in listed[0] and listed[0]["last_status"] == "204"
    assert owner.delete(f"/v1/projects/{project}/webhooks/{hook['id']}").status_code == 204


def test_webhooks_do_not_reach_this_machine_unless_they_may(server: Running, owner: httpx2.Client) -> None:
    target = Receiver()
    project = server.project("owner").id
    hook = owner.post(f"/v1/projects/{project}/webhooks", json={"url": target.url}).json()["id"]
    happen(owner)
    assert "private network" in status(owner, project, hook) and target.taken == []
    owner.delete(f"/v1/projects/{project}/webhooks/{hook}")
    target.stop()


BAD = "http://h:99999/ http://h:0/ http://h:x/ http://[ http://[::1 http:///x ftp://h/ //h/ h http://u:p@h/ http://h/#f"


@pytest.mark.parametrize("url", [*BAD.split(), "http://h/\x00", "http://\u00fc..\u00fc/", "http://a b/", ""])
def test_what_is_no_address_for_a_webhook_is_refused(server: Running, owner: httpx2.Client, url: str) -> None:
    refused = owner.post(f"/v1/projects/{server.project('owner').id}/webhooks", json={"url": url})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT"), refused.text


@pytest.mark.parametrize("url", ["http://h:99999/", "http://[", f"http://{'a' * 64}.example/", "http://%ff/"])
def test_a_webhook_that_cannot_be_sent_to_stops_no_other(
    server: Running, owner: httpx2.Client, receiver: Receiver, private: None, url: str
) -> None:
    project, hooks = server.project("owner").id, server.context.store.webhooks
    last = server.call(server.context.store.events.last)
    bad = server.call(lambda: hooks.add(project, url, "secret", (), created_by="test", since=last)).id
    good = owner.post(f"/v1/projects/{project}/webhooks", json={"url": receiver.url}).json()["id"]
    happen(owner)
    receiver.wait_for(1)
    assert not status(owner, project, bad).startswith("2")
    for hook in (bad, good):
        owner.delete(f"/v1/projects/{project}/webhooks/{hook}").raise_for_status()


def test_a_webhook_that_answers_byte_by_byte_is_given_up(
    server: Running, owner: httpx2.Client, private: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are sent to at a time: who keeps one of them keeps it from the others."""
    monkeypatch.setattr("skerry.server.jobs.webhooks.TIMEOUT", 1.0)
    project = server.project("owner").id
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while True:
                    connection.sendall(b"x: y\r\n")
                    time.sleep(0.1)

        dripping = threading.Thread(target=drip)
        dripping.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        hook = owner.post(f"/v1/projects/{project}/webhooks", json={"url": url, "types": ["created"]}).json()["id"]
        happen(owner)
        assert status(owner, project, hook) == "no answer within 1 s"
        owner.delete(f"/v1/projects/{project}/webhooks/{hook}").raise_for_status()
        dripping.join(10)


def test_nothing_is_sent_to_a_webhook_that_is_removed(server: Running, owner: httpx2.Client, private: None) -> None:
    project, target = server.project("owner").id, Receiver(pause=1.0)
    last = server.call(server.context.store.events.last)
    happen(owner)
    hooks = server.context.store.webhooks
    hook = server.call(lambda: hooks.add(project, target.url, "secret", (), created_by="test", since=last)).id
    target.wait_for(1)
    owner.delete(f"/v1/projects/{project}/webhooks/{hook}").raise_for_status()
    time.sleep(1.5)
    assert len(target.taken) == 1
    target.stop()


@pytest.mark.parametrize(
    "address",
    (
        "127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 ::1 ::ffff:10.0.0.1 fd00::1 fe80::1%eth0 64:ff9b::a00:1 fec0::1"
        " ::10.0.0.1 ::ffff:0:10.0.0.1 2001::1 2002:a00:1:: 168.63.129.16 198.18.0.1 203.0.113.9 255.255.255.255"
    ).split(),
)
def test_private_addresses_are_known(address: str) -> None:
    assert not is_public(address) and is_public("93.184.216.34") and is_public("2606:2800:220:1::1")


def test_only_an_owner_sees_webhooks(server: Running) -> None:
    project = server.project("owner")
    server.share(project, "writer", Role.WRITE)
    with server.client_of("writer") as writer, server.client_of("stranger") as stranger:
        assert writer.get(f"/v1/projects/{project.id}/webhooks").status_code == 403
        assert stranger.get(f"/v1/projects/{project.id}/webhooks").status_code == 404
