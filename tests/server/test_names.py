"""What a name means: nothing of somebody else's that was not asked for, on the server and on its machine."""

from __future__ import annotations

import httpx2
import pytest

from tests.server.conftest import Running

KINDS = ("/v1/sandboxes/prod", "/v1/snapshots/base", "/v1/volumes/data")


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def furnish(client: httpx2.Client, project: str) -> str:
    """A sandbox `prod`, a snapshot `base` and a volume `data` in a project; the sandbox's id."""
    where = {"project": project}
    made = client.post("/v1/sandboxes", json={"name": "prod"}, params=where).raise_for_status().json()["id"]
    client.post(f"/v1/sandboxes/{made}/snapshots", json={"name": "base"}).raise_for_status()
    client.post("/v1/volumes", json={"name": "data"}, params=where).raise_for_status()
    return str(made)


def clear(client: httpx2.Client, project: str) -> None:
    for path in KINDS:
        client.delete(path, params={"project": project}).raise_for_status()
    client.delete(f"/v1/projects/{project}").raise_for_status()


def test_who_shares_a_project_takes_over_no_name(server: Running) -> None:
    """eve makes alice a member; what alice calls `prod`, `base` and `data` is still not eve's."""
    with server.client_of("alice") as alice, server.client_of("eve") as eve:
        project = eve.post("/v1/projects", json={"name": "trap"}).json()["id"]
        box = furnish(eve, project)
        eve.put(f"/v1/projects/{project}/members/{server.user('alice').id}", json={"role": "write"}).raise_for_status()
        for path in KINDS:
            assert alice.get(path).status_code == 404, path
        sent = alice.put("/v1/sandboxes/prod/files", params={"path": "key"}, content=b"credential")
        assert refusal(sent) == (404, "SANDBOX_NOT_FOUND")
        assert refusal(alice.post("/v1/sandboxes", json={"snapshot": "base"})) == (404, "SNAPSHOT_NOT_FOUND")
        for where in ({"project": project}, {"project": "trap"}):
            for path in KINDS:
                assert alice.get(path, params=where).status_code == 200, path
            assert alice.get("/v1/sandboxes/prod", headers={"skerry-project": where["project"]}).json()["id"] == box
        assert alice.get(f"/v1/sandboxes/{box}").status_code == 200
        clear(eve, project)


def test_a_project_somebody_made_keeps_its_name_when_others_share_one_of_the_same(server: Running) -> None:
    with server.client_of("alice") as alice, server.client_of("eve") as eve, server.client_of("bob") as bob:
        mine, theirs, third = (
            client.post("/v1/projects", json={"name": "team"}).raise_for_status().json()["id"]
            for client in (alice, eve, bob)
        )
        box = furnish(alice, mine)
        for client, project in ((eve, theirs), (bob, third)):
            path = f"/v1/projects/{project}/members/{server.user('alice').id}"
            client.put(path, json={"role": "owner"}).raise_for_status()
        assert alice.get("/v1/projects/team").json()["id"] == mine
        assert alice.get("/v1/sandboxes/prod?project=team").json()["id"] == box
        clear(alice, mine)
        asked = alice.get("/v1/projects/team")  # of two that others made neither is guessed
        assert refusal(asked) == (409, "CONFLICT") and theirs in asked.text and third in asked.text
        for client, project in ((eve, theirs), (bob, third)):
            client.delete(f"/v1/projects/{project}").raise_for_status()


def test_a_key_of_one_project_looks_for_names_there(server: Running) -> None:
    with server.client_of("eve") as eve:
        project = eve.post("/v1/projects", json={"name": "narrow"}).json()["id"]
        box = furnish(eve, project)
        key = server.key("eve", project=project)
        with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}) as bound:
            assert bound.get("/v1/sandboxes/prod").json()["id"] == box
        clear(eve, project)


@pytest.mark.parametrize("existing", ["mallory", "owner"])
def test_who_makes_somebody_a_member_learns_no_names(server: Running, existing: str) -> None:
    server.user(existing)
    with server.client_of("eve") as eve, server.client_of("admin") as admin:
        project = eve.post("/v1/projects", json={"name": f"guess {existing}"}).json()["id"]
        theirs, nobodys = (
            eve.put(f"/v1/projects/{project}/members/{name}", json={"role": "read"}) for name in (existing, "nobody-at")
        )
        assert (theirs.status_code, theirs.text) == (404, nobodys.text.replace("nobody-at", existing))
        assert admin.put(f"/v1/projects/{project}/members/{existing}", json={"role": "read"}).status_code == 200
        # Who shares a project sees the other's name there.
        assert eve.put(f"/v1/projects/{project}/members/{existing}", json={"role": "write"}).status_code == 200
        members = {item["user"]: item["role"] for item in eve.get(f"/v1/projects/{project}/members").json()["items"]}
        assert members == {"eve": "owner", existing: "write"}
        eve.delete(f"/v1/projects/{project}").raise_for_status()
