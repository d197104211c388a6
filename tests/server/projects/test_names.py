"""What a name means: nothing of somebody else's that was not asked for, on the server and on its machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


# -- the machine of the server


def skerry(*arguments: str, code: int = 0) -> str:
    """What a command of root on this machine prints; of one that fails what it says is wrong."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SKERRY_URL", "SKERRY_API_KEY"))}
    ran = subprocess.run([sys.executable, "-m", "skerry", *arguments], env=env, capture_output=True, text=True)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout if code == 0 else ran.stderr


def test_an_administrator_finds_by_name_what_was_made_on_the_machine(server: Running) -> None:
    """At once: as README's line for curl does, right after `skerry create --name my-box`."""
    with server.client_of("admin") as admin, server.client_of("eve") as eve:
        id = skerry("create", "--name", "my-box").strip()
        try:
            ran = admin.post("/v1/sandboxes/my-box/exec", json={"command": "hostname"})
            assert (ran.status_code, ran.json().get("stdout")) == (200, "my-box\n"), ran.text
            assert admin.get("/v1/sandboxes/my-box").json()["id"] == id
            assert refusal(eve.get("/v1/sandboxes/my-box")) == (404, "SANDBOX_NOT_FOUND")
            # What somebody else calls the same does not stand in its way, nor is it found in its place.
            other = eve.post("/v1/sandboxes", json={"name": "my-box"}).raise_for_status().json()["id"]
            assert admin.get("/v1/sandboxes/my-box").json()["id"] == id
            assert eve.get("/v1/sandboxes/my-box").json()["id"] == other
            assert id in skerry("info", "my-box")
            skerry("rm", "my-box")
            assert admin.get("/v1/sandboxes/my-box").status_code == 404
        finally:
            eve.delete("/v1/sandboxes/my-box")


def test_a_sandbox_has_one_name_on_the_server_and_on_its_machine(server: Running) -> None:
    with server.client_of("alice") as alice, server.client_of("eve") as eve:
        first = alice.post("/v1/sandboxes", json={"name": "hello"}).raise_for_status().json()["id"]
        slug = server.project("alice").slug
        taken = alice.post("/v1/sandboxes", json={"name": "hello"})
        assert (taken.status_code, taken.json()["detail"]) == (409, "the name 'hello' is taken")
        assert alice.post(f"/v1/sandboxes/{first}/exec", json={"command": "hostname"}).json()["stdout"] == "hello\n"
        shown = skerry("ps")
        assert slug not in shown and "hello" in shown.split()
        assert skerry("exec", "hello", "--", "hostname") == "hello\n"
        second = eve.post("/v1/sandboxes", json={"name": "hello"}).raise_for_status().json()["id"]
        said = skerry("exec", "hello", "--", "true", code=125)
        assert "2 sandboxes are called 'hello'" in said and first in said and second in said, said
        assert skerry("exec", second, "--", "hostname") == "hello\n"
        eve.delete("/v1/sandboxes/hello").raise_for_status()
        skerry("rm", "hello")
        assert alice.get(f"/v1/sandboxes/{first}").status_code == 404


def test_an_import_on_the_machine_belongs_to_nobody_there(server: Running, tmp_path: Path) -> None:
    """What a server exports says whose it was; root, who imports it, has not given it to anybody."""
    with server.client_of("alice") as alice, server.client_of("admin") as admin:
        source = alice.post("/v1/sandboxes", json={"labels": {"team": "a"}}).raise_for_status().json()["id"]
        (tmp_path / "state").write_bytes(alice.post(f"/v1/sandboxes/{source}/export").raise_for_status().content)
        made = skerry("import", str(tmp_path / "state")).strip()
        try:
            assert refusal(alice.get(f"/v1/sandboxes/{made}")) == (404, "SANDBOX_NOT_FOUND")
            assert alice.post(f"/v1/sandboxes/{made}/exec", json={"command": "true"}).status_code == 404
            seen = admin.get(f"/v1/sandboxes/{made}").json()
            assert (seen["project"], seen["labels"]) == (None, {"team": "a"})
        finally:
            skerry("rm", made)
            alice.delete(f"/v1/sandboxes/{source}")


def test_an_error_names_things_as_their_users_do(server: Running) -> None:
    with server.client_of("alice") as alice:
        alice.post("/v1/volumes", json={"name": "data"}).raise_for_status()
        box = alice.post("/v1/sandboxes", json={"volumes": {"/data": "data"}}).raise_for_status().json()["id"]
        alice.post(f"/v1/sandboxes/{box}/snapshots", json={"name": "base"}).raise_for_status()
        for method, path, body in (
            ("POST", "/v1/volumes", {"name": "data"}),
            ("DELETE", "/v1/volumes/data", None),
            ("POST", f"/v1/sandboxes/{box}/snapshots", {"name": "base"}),
            ("POST", "/v1/sandboxes", {"volumes": {"/data": "missing"}}),
        ):
            refused = alice.request(method, path, json=body)
            assert refused.status_code in (404, 409), refused.text
            assert server.project("alice").slug not in refused.text
            assert "'data'" in refused.text or "'base'" in refused.text or "'missing'" in refused.text, refused.text
        for path in (f"/v1/sandboxes/{box}", "/v1/snapshots/base", "/v1/volumes/data"):
            alice.delete(path).raise_for_status()
