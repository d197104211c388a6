"""Events of all sandboxes with one cursor: pages, streams, webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from skerry.server.permissions import Role
from skerry.server.webhooks import _public
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


def test_what_happens_past_the_server_is_found_too(server: Running, owner: httpx2.Client, box: str) -> None:
    from skerry import Sandbox

    cursor = owner.get("/v1/events?since=now").json()["cursor"]
    with Sandbox.get(box) as sandbox:
        sandbox.keep()
        sandbox.pause()
        answer = owner.get("/v1/events", params={"since": cursor, "type": "paused", "wait": 20}).json()
        assert [item["sandbox_id"] for item in answer["items"]] == [box]
        sandbox.resume()


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


@pytest.mark.parametrize("cursor", ["-1", "x", "1e3", "٣", "9" * 19])
def test_what_is_no_cursor_is_refused(owner: httpx2.Client, cursor: str) -> None:
    assert owner.get("/v1/events", params={"since": cursor}).status_code == 400


class Receiver(ThreadingHTTPServer):
    """A webhook's other end: refuses the first `failures` requests, keeps the others."""

    def __init__(self, failures: int = 0) -> None:
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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(failures=1)
    yield receiver
    receiver.stop()


def test_webhooks_are_signed_in_order_and_sent_again_after_a_failure(
    server: Running, owner: httpx2.Client, receiver: Receiver
) -> None:
    object.__setattr__(server.settings, "webhook_private", True)
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
    listed = owner.get(f"/v1/projects/{project}/webhooks").json()["items"]
    assert "secret" not in listed[0]
    assert owner.delete(f"/v1/projects/{project}/webhooks/{hook['id']}").status_code == 204
    object.__setattr__(server.settings, "webhook_private", False)


def test_webhooks_do_not_reach_this_machine_unless_they_may(server: Running, owner: httpx2.Client) -> None:
    target = Receiver()
    project = server.project("owner").id
    hook = owner.post(f"/v1/projects/{project}/webhooks", json={"url": target.url}).json()["id"]
    box = owner.post("/v1/sandboxes", json={}).json()["id"]
    owner.delete(f"/v1/sandboxes/{box}")
    end = time.monotonic() + 20
    status = ""
    while not status and time.monotonic() < end:
        time.sleep(0.05)
        status = owner.get(f"/v1/projects/{project}/webhooks").json()["items"][0]["last_status"]
    assert "private network" in status and target.taken == []
    owner.delete(f"/v1/projects/{project}/webhooks/{hook}")
    target.stop()


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 ::1 ::ffff:10.0.0.1 fd00::1 fe80::1%eth0 64:ff9b::a00:1".split(),
)
def test_private_addresses_are_known(address: str) -> None:
    assert not _public(address) and _public("93.184.216.34") and _public("2606:2800:220:1::1")


def test_only_an_owner_sees_webhooks(server: Running) -> None:
    project = server.project("owner")
    server.share(project, "writer", Role.WRITE)
    with server.client_of("writer") as writer, server.client_of("stranger") as stranger:
        assert writer.get(f"/v1/projects/{project.id}/webhooks").status_code == 403
        assert stranger.get(f"/v1/projects/{project.id}/webhooks").status_code == 404
