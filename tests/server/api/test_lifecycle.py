"""Sandboxes as wholes over HTTP: options, states, copies, snapshots, volumes, exports."""

from __future__ import annotations

import base64
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from skerry.server.access.permissions import Role
from tests.server.conftest import Running


def _exec(client: httpx2.Client, box: str, command: str) -> str:
    done = client.post(f"/v1/sandboxes/{box}/exec", json={"command": command})
    assert done.status_code == 200 and done.json()["exit_code"] == 0, done.text
    return str(done.json()["stdout"])


def _ok(answer: httpx2.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


@pytest.fixture
def made(owner: httpx2.Client) -> Any:
    """Makes sandboxes that go with the test."""
    ids: list[str] = []

    def make(**options: Any) -> str:
        ids.append(_ok(owner.post("/v1/sandboxes", json=options), 201)["id"])
        return ids[-1]

    make.ids = ids  # type: ignore[attr-defined]
    yield make
    for id in ids:
        owner.delete(f"/v1/sandboxes/{id}")


def test_every_option_arrives(owner: httpx2.Client, made: Any) -> None:
    _ok(owner.post("/v1/volumes", json={"name": "opt", "size": "50MB"}), 201)
    id = made(
        name="optional",
        env={"A": "1"},
        secrets={"S": "2"},
        metadata={"m": "x"},
        labels={"l": "y"},
        timeout=500,
        auto_stop=400,
        purpose="preview",
        resources={"cpu": 1, "memory": "256MB", "pids": 100},
        volumes=[{"name": "opt", "path": "/data", "read_only": True}],
        workdir="/tmp",
        user="root",
        encrypted=True,
    )
    info = _ok(owner.get(f"/v1/sandboxes/{id}"))
    assert info["resources"] | {"disk": None} == {
        "cpu": 1.0,
        "memory": 256_000_000,
        "pids": 100,
        "disk": None,
        "gpu": None,
    }
    assert (info["purpose"], info["workdir"], info["user"], info["metadata"]) == ("preview", "/tmp", "root", {"m": "x"})
    [mount] = info["volumes"]
    assert (mount["name"], mount["path"], mount["subpath"], mount["read_only"]) == ("opt", "/data", "", True)
    assert info["encrypted"] is True and info["labels"] == {"l": "y"} and info["project"].startswith("pj-")
    assert _exec(owner, id, "echo $A $S $(pwd) $(whoami)") == "1 2 /tmp root\n"
    busy = owner.delete("/v1/volumes/opt")
    assert (busy.status_code, busy.json()["code"]) == (409, "CONFLICT")
    for query, found in (("metadata.m=x", True), ("metadata.m=z", False), ("label.l=y", True), ("state=paused", False)):
        listed = _ok(owner.get(f"/v1/sandboxes?{query}"))["items"]
        assert (id in [item["id"] for item in listed]) is found, query
    owner.delete(f"/v1/sandboxes/{id}")
    assert owner.delete("/v1/volumes/opt").status_code == 204


def test_options_that_cannot_be_honoured_are_refused(owner: httpx2.Client) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"ports": [80]}, 501, "UNSUPPORTED"),
        ({"region": "eu"}, 501, "UNSUPPORTED"),
        ({"resources": {"gpu": "h100"}}, 501, "UNSUPPORTED"),
        ({"template": "no-such-template"}, 404, "TEMPLATE_NOT_FOUND"),
        ({"template": "python:2.7"}, 404, "TEMPLATE_NOT_FOUND"),
        ({"runtime": "pytorch-gpu"}, 501, "UNSUPPORTED"),
        ({"snapshot": "no-such-snapshot"}, 404, "SNAPSHOT_NOT_FOUND"),
        ({"volumes": {"/x": "no-such-volume"}}, 404, "VOLUME_NOT_FOUND"),
        ({"resources": {"memory": "999GB"}}, 403, "QUOTA_EXCEEDED"),
        ({"timeout": -1}, 400, "INVALID_ARGUMENT"),
        ({"on_timeout": "pause"}, 501, "UNSUPPORTED"),
        ({"on_timeout": "keep"}, 400, "INVALID_ARGUMENT"),
        ({"timeout": "soon"}, 400, "INVALID_ARGUMENT"),
        ({"env": {"A=B": "x"}}, 400, "INVALID_ARGUMENT"),
        ({"no_such_option": 1}, 400, "INVALID_ARGUMENT"),
        ({"name": "Not A Name"}, 400, "INVALID_ARGUMENT"),
        # Files of the server are nobody else's.
        ({"image": "/etc/passwd"}, 400, "INVALID_ARGUMENT"),
        ({"image": "oci:/var/lib"}, 400, "INVALID_ARGUMENT"),
        ({"image": "docker://127.0.0.1:5000/app"}, 400, "INVALID_ARGUMENT"),
        ({"source": {"tar": "/etc/passwd"}}, 400, "INVALID_ARGUMENT"),
    ]
    for options, status, code in cases:
        answer = owner.post("/v1/sandboxes", json=options)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (options, answer.text)


def test_the_same_key_gives_the_same_sandbox(owner: httpx2.Client, server: Running, made: Any) -> None:
    key = {"idempotency-key": f"once-{os.getpid()}"}
    first = _ok(owner.post("/v1/sandboxes", json={}, headers=key), 201)["id"]
    made.ids.append(first)
    assert _ok(owner.post("/v1/sandboxes", json={}, headers=key), 201)["id"] == first
    other = owner.post("/v1/sandboxes", json={"env": {"A": "b"}}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "CONFLICT")
    with server.client_of("somebody-else") as stranger:
        theirs = _ok(stranger.post("/v1/sandboxes", json={}, headers=key), 201)["id"]
        stranger.delete(f"/v1/sandboxes/{theirs}")
    assert theirs != first


def test_a_key_is_refused_where_it_would_not_be_looked_at(owner: httpx2.Client, made: Any) -> None:
    box, key = made(), {"idempotency-key": "once"}
    refused = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "touch done"}, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (501, "UNSUPPORTED")
    assert owner.post(f"/v1/sandboxes/{box}/clone", json={}, headers=key).status_code == 501
    assert _exec(owner, box, "ls") == ""
    _ok(owner.get(f"/v1/sandboxes/{box}", headers=key))  # asked twice it is the same


def test_the_same_key_with_another_source_is_another_sandbox_over_remote_too(owner: httpx2.Client, made: Any) -> None:
    def create(source: str) -> httpx2.Response:
        spec = {"idempotency_key": f"sourced-{os.getpid()}", "source": source}
        return owner.post("/v1/provider/sandboxes", json=spec)

    first = _ok(create("digest of one"))["id"]
    made.ids.append(first)
    assert _ok(create("digest of one"))["id"] == first
    other = create("digest of another")
    assert (other.status_code, other.json()["code"]) == (409, "CONFLICT"), other.text


def test_creates_at_the_same_time_under_one_key_give_one_sandbox(server: Running, made: Any) -> None:
    def create(number: int) -> str:
        with server.client_of("owner") as client:
            key = {"idempotency-key": f"at-once-{os.getpid()}"}
            return str(_ok(client.post("/v1/sandboxes", json={"metadata": {"x": "y"}}, headers=key), 201)["id"])

    with ThreadPoolExecutor(6) as threads:
        ids = set(threads.map(create, range(6)))
    made.ids.extend(ids)
    assert len(ids) == 1


def test_pages_hold_all_of_a_list(owner: httpx2.Client, made: Any) -> None:
    ids = {made(metadata={"page": "yes"}) for _ in range(3)}
    seen, cursor = [], None
    while True:
        query = {"limit": 1, "metadata.page": "yes"} | ({"cursor": cursor} if cursor else {})
        page = _ok(owner.get("/v1/sandboxes", params=query))
        seen += [item["id"] for item in page["items"]]
        if (cursor := page["cursor"]) is None:
            break
    assert len(seen) == 3 and set(seen) == ids


def test_what_becomes_of_a_sandbox_at_its_timeout_can_be_chosen(owner: httpx2.Client, made: Any) -> None:
    kept, brief = made(timeout=2, on_timeout="stop"), made(timeout=2)
    named = _ok(owner.get(f"/v1/sandboxes/{made(name='on-timeout', timeout=60)}"))
    assert (named["on_timeout"], named["timeout"]) == ("stop", 60)
    longer = _ok(owner.patch("/v1/sandboxes/on-timeout", json={"timeout": 500}))
    assert longer["expires_at"] - time.time() > 400
    clone = _ok(owner.post(f"/v1/sandboxes/{kept}/clone", json={"timeout": 60}), 201)
    made.ids.append(clone["id"])
    assert clone["on_timeout"] == "stop"
    _exec(owner, kept, "echo data > kept")
    deadline = time.monotonic() + 30
    while (seen := _ok(owner.get(f"/v1/sandboxes/{kept}")))["state"] != "stopped":
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
    events = _ok(owner.get(f"/v1/sandboxes/{kept}/events", params={"type": "stopped", "wait": 10}))["items"]
    assert events[0]["data"] == {"reason": "timeout"}
    while owner.get(f"/v1/sandboxes/{brief}").status_code != 404:  # it was made later, so its end comes later
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert _exec(owner, kept, "cat kept") == "data\n"


def test_a_copy_keeps_when_it_is_to_be_stopped_for_inactivity(owner: httpx2.Client, made: Any) -> None:
    id = made(auto_stop=300, auto_delete=900)
    clone = _ok(owner.post(f"/v1/sandboxes/{id}/clone", json={}), 201)
    forks = _ok(owner.post(f"/v1/sandboxes/{id}/fork", json={"n": 1}), 201)["items"]
    made.ids.extend([clone["id"], forks[0]["sandbox"]["id"]])
    for copy in (clone, forks[0]["sandbox"]):
        assert (copy["auto_stop"], copy["auto_archive"], copy["auto_delete"]) == (300, None, 900)


def test_a_sandbox_goes_through_its_states(owner: httpx2.Client, made: Any) -> None:
    id = made()
    at = f"/v1/sandboxes/{id}"
    _exec(owner, id, "echo kept > file")
    assert _ok(owner.post(f"{at}/stop", json={"timeout": 1}))["state"] == "stopped"
    assert _ok(owner.get(f"{at}/wait?state=stopped&timeout=5"))["state"] == "stopped"
    late = owner.get(f"{at}/wait?state=running&timeout=0.1")
    assert (late.status_code, late.json()["code"]) == (504, "TIMEOUT")
    assert _ok(owner.get(f"{at}/status"))["usage"] is None
    assert _ok(owner.get(f"{at}/ready"))["ready"] is False
    assert _ok(owner.get(f"{at}/health"))["healthy"] is False
    assert _ok(owner.post(f"{at}/start"))["state"] == "running"
    assert _ok(owner.get(f"{at}/health"))["healthy"] is True
    report = _ok(owner.post(f"{at}/health", json={"checks": {"mine": "exit 3"}}))
    assert report["checks"]["mine"]["healthy"] is False and report["checks"]["agent"]["healthy"] is True
    assert _ok(owner.post(f"{at}/pause"))["state"] == "paused"
    assert _ok(owner.post(f"{at}/resume"))["state"] == "running"
    assert _ok(owner.post(f"{at}/restart", json={"env": {"NEW": "1"}, "timeout": 1}))["state"] == "running"
    assert _exec(owner, id, "echo $NEW $(cat file)") == "1 kept\n"
    key = base64.b64encode(os.urandom(32)).decode()
    assert _ok(owner.post(f"{at}/archive", json={"key": key}))["state"] == "archived"
    wrong = owner.post(f"{at}/start", json={"key": base64.b64encode(bytes(32)).decode()})
    assert (wrong.status_code, wrong.json()["code"]) == (401, "UNAUTHENTICATED")
    assert _ok(owner.post(f"{at}/start", json={"key": key}))["state"] == "running"
    assert _exec(owner, id, "cat file") == "kept\n"
    healthy = owner.post(f"{at}/recover")
    assert (healthy.status_code, healthy.json()["code"]) == (409, "CONFLICT")
    assert _ok(owner.post(f"{at}/reset", json={"hard": True}))["state"] == "running"
    assert _exec(owner, id, "ls") == ""
    before = _ok(owner.get(at))["expires_at"]
    assert _ok(owner.patch(at, json={"timeout": 60}))["expires_at"] < before
    assert _ok(owner.patch(f"{at}/limits", json={"cpu_percent": 50}))["resources"]["cpu"] == 0.5
    usage = _ok(owner.get(f"{at}/usage"))
    assert usage["memory_used"] > 0 and usage["pids"] >= 1
    assert "/workspace" in _ok(owner.get(f"{at}/instructions", params={"extra": "Be brief."}))["instructions"]
    told = f"/v1/sandboxes/{made(instructions='Only this.')}/instructions"
    assert _ok(owner.get(told))["instructions"] == "Only this."
    _ok(owner.post(f"{at}/processes", json={"command": ["sleep", "1000"]}), 201)
    assert owner.delete(f"{at}?graceful=true&timeout=5").status_code == 204
    assert owner.get(at).status_code == 404


def test_a_reader_starts_nothing(owner: httpx2.Client, server: Running, made: Any) -> None:
    id = made()
    server.share(server.project("owner"), "onlooker", Role.READ)
    _ok(owner.post(f"/v1/sandboxes/{id}/stop"))
    with server.client_of("onlooker") as reader:
        refused = reader.get(f"/v1/sandboxes/{id}/files/list")
        assert (refused.status_code, refused.json()["code"]) == (409, "SANDBOX_STOPPED")
        assert reader.get(f"/v1/sandboxes/{id}/env").status_code == 403
        assert _ok(owner.get(f"/v1/sandboxes/{id}"))["state"] == "stopped"
        assert _ok(owner.get(f"/v1/sandboxes/{id}/files/list"))["items"] == []
        assert _ok(reader.get(f"/v1/sandboxes/{id}/files/list"))["items"] == []


def test_copies_are_of_the_same_moment_and_project(owner: httpx2.Client, made: Any) -> None:
    id = made(env={"A": "1"}, secrets={"S": "2"}, labels={"l": "1"})
    _exec(owner, id, "echo mine > file")
    clone = _ok(owner.post(f"/v1/sandboxes/{id}/clone", json={"name": "twin", "env": {"B": "2"}}), 201)
    made.ids.append(clone["id"])
    assert (clone["name"], clone["labels"], clone["project"]) == ("twin", {"l": "1"}, clone["project"])
    assert _exec(owner, "twin", "echo $A $B $S; cat file") == "1 2\nmine\n"
    forks = _ok(owner.post(f"/v1/sandboxes/{id}/fork", json={"n": 2, "labels": {"l": "2"}, "secrets": True}), 201)[
        "items"
    ]
    made.ids.extend(item["sandbox"]["id"] for item in forks)
    assert [item["error"] for item in forks] == [None, None]
    for item in forks:
        assert item["sandbox"]["labels"] == {"l": "2"}
        assert _exec(owner, item["sandbox"]["id"], "echo $S; cat file") == "2\nmine\n"


def test_a_copy_that_fails_has_the_status_of_its_error(owner: httpx2.Client, made: Any) -> None:
    id = made()
    _exec(owner, id, "head -c 30000000 /dev/urandom > large; sync")
    forks = _ok(owner.post(f"/v1/sandboxes/{id}/fork", json={"n": 1, "resources": {"disk": "20MB"}}), 201)["items"]
    made.ids.extend(item["sandbox"]["id"] for item in forks if item["sandbox"])
    assert [400 <= item["error"]["status"] < 600 for item in forks] == [True]


def test_snapshots_are_taken_listed_restored_begun_with_and_removed(
    owner: httpx2.Client, server: Running, made: Any
) -> None:
    id = made()
    at = f"/v1/sandboxes/{id}"
    _exec(owner, id, "echo one > file")
    first = _ok(owner.post(f"{at}/snapshots", json={"name": "first", "description": "the first"}), 201)
    assert (first["name"], first["description"], first["sandbox_id"]) == ("first", "the first", id)
    _exec(owner, id, "echo two > file")
    second = _ok(owner.post(f"{at}/snapshots"), 201)
    assert second["parent"] == first["id"]
    assert [item["id"] for item in _ok(owner.get(f"{at}/snapshots"))["items"]] == [second["id"], first["id"]]
    (root,) = _ok(owner.get(f"{at}/snapshots/tree"))["items"]
    assert (root["snapshot"]["id"], root["children"][0]["snapshot"]["id"]) == (first["id"], second["id"])
    assert {first["id"], second["id"]} <= {item["id"] for item in _ok(owner.get("/v1/snapshots"))["items"]}
    assert _ok(owner.get("/v1/snapshots/first"))["id"] == first["id"]
    assert first["id"] in [node["snapshot"]["id"] for node in _ok(owner.get("/v1/snapshots/tree"))["items"]]
    assert _ok(owner.post(f"{at}/restore", json={"snapshot": "first"}))["id"] == id
    assert _exec(owner, id, "cat file") == "one\n"
    begun = made(snapshot=second["id"])
    assert _exec(owner, begun, "cat file") == "two\n"
    with server.client_of("stranger") as stranger:
        mine = _ok(stranger.post("/v1/sandboxes", json={}), 201)["id"]
        try:
            for answer in (
                stranger.get(f"/v1/snapshots/{first['id']}"),
                stranger.post("/v1/sandboxes", json={"snapshot": first["id"]}),
                stranger.post(f"/v1/sandboxes/{mine}/restore", json={"snapshot": first["id"]}),
                stranger.delete(f"/v1/snapshots/{first['id']}"),
            ):
                assert (answer.status_code, answer.json()["code"]) == (404, "SNAPSHOT_NOT_FOUND")
            assert _ok(stranger.get("/v1/snapshots"))["items"] == []
        finally:
            stranger.delete(f"/v1/sandboxes/{mine}")
    for name in ("first", second["id"]):
        assert owner.delete(f"/v1/snapshots/{name}").status_code == 204
    assert owner.get("/v1/snapshots/first").status_code == 404


def test_a_mount_makes_a_missing_volume(owner: httpx2.Client, made: Any) -> None:
    mount = {"name": "made-by-create", "path": "/data", "persistent": False}
    missing = owner.post("/v1/sandboxes", json={"volumes": [mount | {"persistent": None, "mount_existing": True}]})
    assert (missing.status_code, missing.json()["code"]) == (404, "VOLUME_NOT_FOUND")
    id = made(volumes=[mount])
    assert _ok(owner.get("/v1/volumes/made-by-create"))["temporary"] is True
    assert owner.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert owner.get("/v1/volumes/made-by-create").status_code == 404


def test_volumes_of_projects_do_not_meet(owner: httpx2.Client, server: Running) -> None:
    _ok(owner.post("/v1/volumes", json={"name": "shared"}), 201)
    taken = owner.post("/v1/volumes", json={"name": "shared"})
    assert (taken.status_code, taken.json()["code"]) == (409, "CONFLICT")
    with server.client_of("stranger") as stranger:
        assert stranger.get("/v1/volumes/shared").status_code == 404
        assert _ok(stranger.post("/v1/volumes", json={"name": "shared"}), 201)["name"] == "shared"
        refused = stranger.post("/v1/sandboxes", json={"volumes": {"/v": f"{server.project('owner').slug}.shared"}})
        assert refused.status_code == 404
        assert stranger.delete("/v1/volumes/shared").status_code == 204
    assert [item["name"] for item in _ok(owner.get("/v1/volumes"))["items"]] == ["shared"]
    assert owner.delete("/v1/volumes/shared").status_code == 204


def test_a_state_goes_out_and_comes_in_again(owner: httpx2.Client, made: Any) -> None:
    id = made(env={"A": "1"})
    _exec(owner, id, "head -c 3000000 /dev/urandom > blob; sha256sum blob > sum")
    for key in (None, base64.b64encode(os.urandom(32)).decode()):
        out = owner.post(f"/v1/sandboxes/{id}/export", json={"key": key} if key else None)
        assert (out.status_code, out.headers["content-type"]) == (200, "application/vnd.skerry.state"), out.text
        headers = {"skerry-key": key} if key else {}

        def pieces(data: bytes = out.content) -> Any:
            yield from (data[at : at + 100_000] for at in range(0, len(data), 100_000))

        back = owner.post("/v1/states", params={"options": '{"env": {"B": "2"}}'}, content=pieces(), headers=headers)
        made.ids.append(_ok(back, 201)["id"])
        assert _exec(owner, made.ids[-1], "sha256sum -c sum; echo $A $B") == "blob: OK\n1 2\n"
    count = len(_ok(owner.get("/v1/sandboxes"))["items"])
    for content, sent, status, code in (
        (out.content, {}, 401, "UNAUTHENTICATED"),
        (out.content[:-100_000], headers, 422, "CORRUPTED"),
        (b"nonsense", {}, 400, "INVALID_ARGUMENT"),
        (out.content, {"skerry-key": "short"}, 400, "INVALID_ARGUMENT"),
    ):
        refused = owner.post("/v1/states", content=content, headers=sent)
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert owner.post("/v1/states", params={"options": "{"}, content=b"").status_code == 400
    told = owner.post("/v1/states", params={"options": '{"secrets": {"S": "hidden"}}'}, content=b"")
    assert (told.status_code, told.json()["hint"]) == (400, "send the options as the header Skerry-Options")
    assert len(_ok(owner.get("/v1/sandboxes"))["items"]) == count
    snapshot = _ok(owner.post(f"/v1/sandboxes/{id}/snapshots"), 201)["id"]
    kept = owner.post(f"/v1/snapshots/{snapshot}/export")
    headers = {"skerry-options": '{"secrets": {"S": "hidden"}}'}
    made.ids.append(_ok(owner.post("/v1/states", content=kept.content, headers=headers), 201)["id"])
    assert _exec(owner, made.ids[-1], "sha256sum -c sum; echo $S") == "blob: OK\nhidden\n"
    owner.delete(f"/v1/snapshots/{snapshot}")


def test_a_state_that_nobody_takes_ends_without_a_trace(owner: httpx2.Client, server: Running, made: Any) -> None:
    id = made()
    _exec(owner, id, "head -c 60000000 /dev/urandom > blob")
    for _ in range(6):  # more than there are places for states on their way
        with server.client_of("owner") as other, other.stream("POST", f"/v1/sandboxes/{id}/export") as answer:
            next(answer.iter_raw(1000))
    end = time.monotonic() + 60
    whole = owner.post(f"/v1/sandboxes/{id}/export")
    assert whole.status_code == 200 and len(whole.content) > 60_000_000 and time.monotonic() < end


def test_nobody_s_slow_uploads_keep_the_states_of_others_waiting(
    owner: httpx2.Client, server: Running, made: Any
) -> None:
    id, place = made(), urlsplit(server.url)
    with ExitStack() as slow, server.client_of("snail") as snail:
        head = f"host: {place.netloc}\r\nauthorization: {snail.headers['authorization']}\r\ncontent-length: 9999"
        for _ in range(10):
            half = slow.enter_context(socket.create_connection((place.hostname, place.port)))
            half.sendall(f"POST /v1/states HTTP/1.1\r\n{head}\r\n\r\nx".encode())
        end = time.monotonic() + 20
        while server.context.metrics.open["requests"] < 10:
            assert time.monotonic() < end
            time.sleep(0.01)
        whole = owner.post(f"/v1/sandboxes/{id}/export", timeout=20)
    assert whole.status_code == 200 and whole.content
