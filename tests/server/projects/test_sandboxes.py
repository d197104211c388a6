"""Whose a sandbox is, what it is called, and who sees it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2
import pytest

from skerry.server.access.permissions import Role
from tests.server.conftest import Running


def test_a_sandbox_is_made_seen_and_destroyed_by_its_owner(server: Running, owner: httpx2.Client) -> None:
    made = owner.post("/v1/sandboxes", json={"name": "mine", "labels": {"a": "b"}})
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["labels"]) == ("mine", {"a": "b"})
    id = made.json()["id"]
    for asked in (id, "mine"):
        assert owner.get(f"/v1/sandboxes/{asked}").json()["id"] == id
    assert id in [item["id"] for item in owner.get("/v1/sandboxes").json()["items"]]
    assert owner.delete("/v1/sandboxes/mine").status_code == 204
    gone = owner.get(f"/v1/sandboxes/{id}")
    assert (gone.status_code, gone.json()["code"]) == (404, "SANDBOX_NOT_FOUND")


def test_a_stranger_gets_the_very_answer_of_a_sandbox_that_is_not_there(server: Running, box: str) -> None:
    with server.client_of("stranger") as stranger:
        theirs, nothing = stranger.get(f"/v1/sandboxes/{box}"), stranger.get("/v1/sandboxes/sb-000000000000")
        assert theirs.status_code == nothing.status_code == 404
        assert theirs.json() == {**nothing.json(), "detail": nothing.json()["detail"].replace("sb-000000000000", box)}
        assert stranger.get("/v1/sandboxes").json()["items"] == []


def test_names_are_unique_in_a_project_and_free_in_others(server: Running, owner: httpx2.Client) -> None:
    with server.client_of("namesake") as other:
        first = owner.post("/v1/sandboxes", json={"name": "same"}).json()["id"]
        second = other.post("/v1/sandboxes", json={"name": "same"}).json()["id"]
        try:
            assert first != second
            assert owner.get("/v1/sandboxes/same").json()["id"] == first
            assert other.get("/v1/sandboxes/same").json()["id"] == second
            taken = owner.post("/v1/sandboxes", json={"name": "same"})
            assert (taken.status_code, taken.json()["code"]) == (409, "CONFLICT")
        finally:
            owner.delete(f"/v1/sandboxes/{first}")
            other.delete(f"/v1/sandboxes/{second}")


def test_a_member_who_may_only_look_cannot_make_or_destroy(server: Running, box: str) -> None:
    project = server.project("owner")
    server.share(project, "reader", Role.READ)
    with server.client_of("reader") as reader:
        assert reader.get(f"/v1/sandboxes/{box}").status_code == 200
        refused = reader.delete(f"/v1/sandboxes/{box}")
        assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
        assert reader.post(f"/v1/sandboxes?project={project.id}", json={}).status_code == 403


def test_nobody_may_set_the_labels_of_the_server(owner: httpx2.Client) -> None:
    refused = owner.post("/v1/sandboxes", json={"labels": {"skerry.project": "pj-other"}})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_who_is_not_signed_in_learns_nothing(server: Running, box: str) -> None:
    with server.client_of(None) as nobody:
        for path in (f"/v1/sandboxes/{box}", "/v1/sandboxes/nothing", "/v1/sandboxes"):
            refused = nobody.get(path)
            assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED")


def test_who_may_only_look_makes_nothing_from_a_snapshot(server: Running, owner: httpx2.Client, box: str) -> None:
    """Its variables are in it: in a sandbox of one's own they could be read."""
    server.share(server.project("owner"), "reader", Role.READ)
    taken = owner.post(f"/v1/sandboxes/{box}/snapshots", json={}).json()["id"]
    with server.client_of("reader") as reader:
        mine = reader.post("/v1/sandboxes", json={}).json()["id"]
        try:
            for path, body in (
                ("/v1/sandboxes", {"snapshot": taken}),
                ("/v1/sandboxes", {"restore_from": taken}),
                ("/v1/provider/sandboxes", {"snapshot": taken}),
                (f"/v1/sandboxes/{mine}/restore", {"snapshot": taken}),
                (f"/v1/provider/sandboxes/{mine}/restore", {"snapshot": taken}),
            ):
                refused = reader.post(path, json=body)
                assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED"), path
        finally:
            reader.delete(f"/v1/sandboxes/{mine}")
    owner.delete(f"/v1/snapshots/{taken}")


def test_a_project_goes_once_all_that_it_had_is_gone(owner: httpx2.Client) -> None:
    project = owner.post("/v1/projects", json={"name": "brief"}).json()["id"]
    where = {"project": project}
    box = owner.post("/v1/sandboxes", json={}, params=where).json()["id"]
    taken = owner.post(f"/v1/sandboxes/{box}/snapshots", json={}).json()["id"]
    owner.post("/v1/volumes", json={"name": "data"}, params=where).raise_for_status()
    for path in (f"/v1/sandboxes/{box}", f"/v1/snapshots/{taken}", "/v1/volumes/data"):
        refused = owner.delete(f"/v1/projects/{project}")
        assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
        owner.delete(path, params=where).raise_for_status()
    assert owner.delete(f"/v1/projects/{project}").status_code == 204


def test_a_snapshots_name_means_that_of_the_sandboxs_own_project(owner: httpx2.Client, box: str) -> None:
    project = owner.post("/v1/projects", json={"name": "apart"}).json()["id"]
    other = owner.post("/v1/sandboxes", json={}, params={"project": project}).json()["id"]
    for id in (box, other):
        owner.put(f"/v1/sandboxes/{id}/files", params={"path": "who"}, content=id.encode())
        owner.post(f"/v1/sandboxes/{id}/snapshots", json={"name": "before"}).raise_for_status()
    owner.post(f"/v1/sandboxes/{other}/restore", json={"snapshot": "before"}).raise_for_status()
    made = owner.post("/v1/sandboxes", json={"snapshot": "before"}, params={"project": project}).json()["id"]
    for id in (other, made):
        assert owner.get(f"/v1/sandboxes/{id}/files", params={"path": "who"}).text == other
    for id in (other, made):
        owner.delete(f"/v1/sandboxes/{id}").raise_for_status()
    for where in ({}, {"project": project}):
        owner.delete("/v1/snapshots/before", params=where).raise_for_status()


def test_a_damaged_sandbox_stays_its_owners(server: Running, owner: httpx2.Client) -> None:
    box = owner.post("/v1/sandboxes", json={"name": "frail"}).json()["id"]
    (record,) = Path(os.environ["SKERRY_HOME"]).glob(f"**/{box}/record.json")
    record.write_bytes(record.read_bytes()[:20])
    server.call(server.context.sandboxes.close)  # as after a start of the server
    server.call(server.context.events.look)
    for asked in (box, "frail"):
        refused = owner.get(f"/v1/sandboxes/{asked}")
        assert (refused.status_code, refused.json()["code"]) == (422, "CORRUPTED")
    assert box in [item["id"] for item in owner.get("/v1/sandboxes").json()["items"]]
    assert owner.delete("/v1/sandboxes/frail").status_code == 204
    assert owner.get(f"/v1/sandboxes/{box}").status_code == 404


def test_administrators_see_what_a_lost_database_has_left(server: Running, box: str, tmp_path: Path) -> None:
    """A server with a database of its own over the same sandboxes: their labels name projects it has never had."""
    other = Running(tmp_path)
    try:
        with other.client_of("admin") as admin, other.client_of("owner") as somebody:
            for path in ("/v1/sandboxes", "/v1/provider/sandboxes"):
                assert box in admin.get(path).text and box not in somebody.get(path).text
            assert admin.get(f"/v1/sandboxes/{box}").status_code == 200
    finally:
        other.stop()


def test_nobody_misses_the_end_of_a_sandbox_though_the_server_fails_at_it(
    server: Running, owner: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = owner.post("/v1/sandboxes", json={}).json()["id"]

    async def killed(id: str) -> None:
        raise RuntimeError("at this point")

    with monkeypatch.context() as patch:
        patch.setattr(server.context.sandboxes, "on_gone", killed)
        assert owner.delete(f"/v1/sandboxes/{box}").status_code == 500
    server.call(server.context.events.look)
    assert server.call(lambda: server.context.store.events.of_sandbox(box)).type == "destroyed"  # type: ignore[union-attr]


def test_what_has_ended_since_it_was_listed_does_not_come_back(server: Running, owner: httpx2.Client) -> None:
    box = owner.post("/v1/sandboxes", json={"name": "brief"}).json()["id"]
    listed = server.call(server.context.providers.default.list)
    owner.delete(f"/v1/sandboxes/{box}").raise_for_status()
    server.call(lambda: server.context.sandboxes.note(listed))
    assert server.call(lambda: server.context.store.ownership.get("sandbox", box)).gone  # type: ignore[union-attr]


def test_a_create_that_is_asked_for_again_leaves_no_connection_behind(server: Running, owner: httpx2.Client) -> None:
    counts = []
    for _ in range(8):
        box = owner.post("/v1/sandboxes", json={}, headers={"idempotency-key": "again"}).json()["id"]
        assert owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "true"}).status_code == 200
        counts.append(len(os.listdir("/proc/self/fd")))
    owner.delete(f"/v1/sandboxes/{box}").raise_for_status()
    assert counts[-1] <= counts[0] + 2, counts
