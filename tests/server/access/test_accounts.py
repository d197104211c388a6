"""Users, sessions, links, keys, projects, tokens: what each opens and what it does not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from skerry import Sandbox
from skerry.server.access.permissions import Role, Scope
from skerry.server.store import Store
from tests.server.conftest import Running

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def admin(server: Running) -> Iterator[httpx2.Client]:
    with server.client_of("admin") as client:
        yield client


@pytest.fixture(scope="module")
def mira(admin: httpx2.Client) -> str:
    made = admin.post("/v1/users", json={"name": "mira", "password": PASSWORD})
    assert made.status_code == 201, made.text
    return "mira"


def browser(server: Running, **headers: str) -> httpx2.Client:
    """Sends what a page of the server itself would send."""
    same = {"sec-fetch-site": "same-origin", "origin": server.url}
    return httpx2.Client(base_url=server.url, headers=same | headers, timeout=30)


@contextmanager
def signed_in(server: Running, name: str) -> Iterator[httpx2.Client]:
    with browser(server) as client:
        client.post("/v1/session", json={"name": name, "password": PASSWORD}).raise_for_status()
        yield client


def code(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def test_a_password_signs_in_and_signing_out_ends_the_session(server: Running, mira: str) -> None:
    with signed_in(server, mira) as client:
        cookie = client.cookies["skerry"]
        assert client.get("/v1/session").json()["user"] == "mira"
        assert client.delete("/v1/session").status_code == 204
        client.cookies.set("skerry", cookie)
        assert code(client.get("/v1/session")) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(("name", "password"), [("mira", "wrong"), ("nobody-here", PASSWORD)])
def test_a_wrong_password_and_a_wrong_name_are_told_the_same(
    server: Running, mira: str, name: str, password: str
) -> None:
    with browser(server) as client:
        refused = client.post("/v1/session", json={"name": name, "password": password})
        assert code(refused) == (401, "UNAUTHENTICATED")
        assert refused.json()["detail"] == "the name, the password or the link is wrong"
        assert "set-cookie" not in refused.headers


def test_a_link_signs_in_once(server: Running, admin: httpx2.Client, mira: str) -> None:
    url = admin.post("/v1/users/mira/link", json={}).json()["url"]
    page, _, text = url.partition("#")
    assert page == f"{server.url}/sign-in" and text
    with browser(server) as first, browser(server) as second:
        assert first.get("/sign-in").status_code == 200
        assert first.post("/v1/session", json={"link": text}).json()["user"] == "mira"
        assert code(second.post("/v1/session", json={"link": text})) == (401, "UNAUTHENTICATED")


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites(server: Running, mira: str) -> None:
    with browser(server) as client:
        cookie = client.post("/v1/session", json={"name": mira, "password": PASSWORD}).headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=lax" in cookie and "path=/" in cookie


def test_signing_out_removes_the_cookie_over_tls_too(tmp_path: Path) -> None:
    """Browsers take nothing for a `__Host-` cookie, its removal neither, that is not for TLS alone."""
    server = Running(tmp_path, public_url="https://skerry.example")
    try:
        stored = server.call(lambda: server.context.passwords.hash(PASSWORD))
        server.call(lambda: server.context.store.users.add("mira", password=stored))
        here = f"http://127.0.0.1:{server.settings.port}"
        with httpx2.Client(base_url=here, headers={"origin": server.url}) as client:
            given = client.post("/v1/session", json={"name": "mira", "password": PASSWORD}).headers["set-cookie"]
            assert given.startswith("__Host-skerry=")
            gone = client.delete("/v1/session", headers={"cookie": given.partition(";")[0]}).headers["set-cookie"]
            assert gone.startswith("__Host-skerry=") and "max-age=0" in gone.lower() and "secure" in gone.lower()
    finally:
        server.stop()


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "null"},
        {},
    ],
)
def test_a_page_of_another_site_can_change_nothing(server: Running, mira: str, headers: dict[str, str]) -> None:
    with signed_in(server, mira) as client:
        for name in ("origin", "sec-fetch-site"):
            del client.headers[name]
        refused = client.post("/v1/projects", json={"name": "forged"}, headers=headers)
        assert code(refused) == (403, "PERMISSION_DENIED")
        made = client.post("/v1/projects", json={"name": f"real {time.time()}"}, headers={"x-skerry": "1"})
        assert made.status_code == 201


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "a@b"])
def test_a_name_that_is_not_the_servers_is_refused(server: Running, host: str) -> None:
    with server.client_of(None) as client:
        assert client.get("/health", headers={"host": host}).status_code == 400


def test_a_key_is_bounded_by_its_scopes_its_project_and_its_lifetime(server: Running, admin: httpx2.Client) -> None:
    server.user("holder")
    mine, shared = server.project("holder"), server.project("owner")
    server.share(shared, "holder", Role.WRITE)
    reader = server.key("holder", scopes=frozenset({Scope.READ}))
    bound = server.key("holder", project=shared.id)
    with server.client_of(None) as client:
        as_reader, as_bound = {"authorization": f"Bearer {reader}"}, {"authorization": f"Bearer {bound}"}
        assert client.get("/v1/sandboxes", headers=as_reader).status_code == 200
        assert code(client.post("/v1/sandboxes", json={}, headers=as_reader)) == (403, "PERMISSION_DENIED")
        assert code(client.post("/v1/keys", json={}, headers=as_reader)) == (403, "PERMISSION_DENIED")
        assert [item["id"] for item in client.get("/v1/projects", headers=as_bound).json()["items"]] == [shared.id]
        assert code(client.get(f"/v1/projects/{mine.id}", headers=as_bound)) == (404, "NOT_FOUND")
        with server.client_of("holder") as holder:
            brief = holder.post("/v1/keys", json={"lifetime": 0.3}).json()["key"]
        assert client.get("/v1/session", headers={"authorization": f"Bearer {brief}"}).status_code == 200
        time.sleep(0.35)
        assert client.get("/v1/session", headers={"authorization": f"Bearer {brief}"}).status_code == 401


def test_a_key_cannot_make_one_that_may_more(server: Running) -> None:
    key = server.key("holder", scopes=frozenset({Scope.ADMIN}))
    with server.client_of(None) as client:
        refused = client.post("/v1/keys", json={"scopes": ["write"]}, headers={"authorization": f"Bearer {key}"})
        assert code(refused) == (403, "PERMISSION_DENIED")


def test_a_key_of_one_project_does_not_become_its_user(server: Running) -> None:
    """One without a password would get one, and with it everything."""
    key = server.key("holder", project=server.project("holder").id)
    with server.client_of(None) as client:
        client.headers["authorization"] = f"Bearer {key}"
        for method, path, body in (
            ("PUT", "/v1/password", {"new": PASSWORD}),
            ("POST", "/v1/keys", {}),
            ("POST", "/v1/projects", {"name": "elsewhere"}),
            ("DELETE", "/v1/sessions", None),
        ):
            assert code(client.request(method, path, json=body)) == (403, "PERMISSION_DENIED"), path


def test_what_a_key_makes_does_not_outlive_it(server: Running, owner: httpx2.Client, box: str) -> None:
    first = owner.post("/v1/keys", json={"scopes": ["read", "write", "admin"], "lifetime": 60}).json()
    with server.client_of(None) as client:
        client.headers["authorization"] = f"Bearer {first['key']}"
        for body in ({}, {"lifetime": 3600}):
            assert client.post("/v1/keys", json=body).json()["expires_at"] == first["expires_at"]
            made = client.post(f"/v1/sandboxes/{box}/tokens", json=body).json()
            assert made["expires_at"] == first["expires_at"]
        assert client.post("/v1/keys", json={"lifetime": 5}).json()["expires_at"] < first["expires_at"]


def test_a_revoked_key_is_no_good_and_nobody_revokes_anothers(server: Running) -> None:
    with (
        server.client_of("holder") as holder,
        server.client_of("stranger") as stranger,
        server.client_of(None) as client,
    ):
        made = holder.post("/v1/keys", json={"name": "short"}).json()
        headers = {"authorization": f"Bearer {made['key']}"}
        assert code(stranger.delete(f"/v1/keys/{made['id']}")) == (404, "NOT_FOUND")
        assert client.get("/v1/session", headers=headers).status_code == 200
        assert holder.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert client.get("/v1/session", headers=headers).status_code == 401
        assert "key" not in holder.get("/v1/keys").json()["items"][0]


@pytest.mark.parametrize("text", ["sk", "sk_", "sk_a_b", "st_a_b", "sk_0_0_0", "é", "x" * 5000])
def test_a_forged_key_is_nobodys(server: Running, text: str) -> None:
    with server.client_of(None) as client:
        refused = client.get("/v1/session", headers={"authorization": f"Bearer {text}".encode()})
        assert code(refused) == (401, "UNAUTHENTICATED")


def test_a_disabled_user_is_out_at_once(server: Running, admin: httpx2.Client) -> None:
    with server.client_of("goner") as goner:
        assert goner.get("/v1/session").status_code == 200
        assert admin.patch("/v1/users/goner", json={"disabled": True}).json()["disabled"]
        assert goner.get("/v1/session").status_code == 401
        admin.patch("/v1/users/goner", json={"disabled": False})
        assert goner.get("/v1/session").status_code == 200
        assert admin.delete("/v1/users/goner").status_code == 204
        assert goner.get("/v1/session").status_code == 401


def test_the_last_administrator_and_the_last_owner_stay(server: Running, admin: httpx2.Client) -> None:
    assert code(admin.patch("/v1/users/admin", json={"admin": False})) == (409, "CONFLICT")
    assert code(admin.delete("/v1/users/admin")) == (409, "CONFLICT")
    with server.client_of("owner") as owner:
        made = owner.post("/v1/projects", json={"name": "common"}).json()["id"]
        assert code(owner.delete(f"/v1/projects/{made}/membership")) == (409, "CONFLICT")
        assert (
            owner.put(f"/v1/projects/{made}/members/{server.user('admin').id}", json={"role": "owner"}).status_code
            == 200
        )
        assert owner.delete(f"/v1/projects/{made}/membership").status_code == 204
        assert code(owner.get(f"/v1/projects/{made}")) == (404, "NOT_FOUND")
    assert admin.delete(f"/v1/projects/{made}").status_code == 204


def test_nobody_loses_their_personal_project_to_another_owner(server: Running) -> None:
    project = server.project("generous")
    server.share(project, "greedy", Role.OWNER)
    with server.client_of("greedy") as greedy:
        for role in ("read", "write"):
            taken = greedy.put(f"/v1/projects/{project.id}/members/generous", json={"role": role})
            assert code(taken) == (409, "CONFLICT")
        assert code(greedy.delete(f"/v1/projects/{project.id}/members/generous")) == (409, "CONFLICT")
        assert greedy.delete(f"/v1/projects/{project.id}/membership").status_code == 204


def test_a_new_password_ends_every_session(server: Running, admin: httpx2.Client) -> None:
    admin.post("/v1/users", json={"name": "nia", "password": PASSWORD}).raise_for_status()
    with signed_in(server, "nia") as first, signed_in(server, "nia") as second:
        wrong = first.put("/v1/password", json={"old": "not this one", "new": "another long one"})
        assert code(wrong) == (401, "UNAUTHENTICATED")
        assert code(first.put("/v1/password", json={"old": PASSWORD, "new": "short"})) == (400, "INVALID_ARGUMENT")
        assert first.put("/v1/password", json={"old": PASSWORD, "new": "another long one"}).status_code == 204
        assert {first.get("/v1/session").status_code, second.get("/v1/session").status_code} == {401}


def test_a_sandboxs_token_opens_that_sandbox_and_nothing_else(server: Running, owner: httpx2.Client, box: str) -> None:
    other = owner.post("/v1/sandboxes", json={}).json()["id"]
    made = owner.post(f"/v1/sandboxes/{box}/tokens", json={"role": "read"}).json()
    with server.client_of(None) as inside:
        inside.headers["authorization"] = f"Bearer {made['token']}"
        assert inside.get(f"/v1/sandboxes/{box}").status_code == 200
        assert inside.get(f"/v1/sandboxes/{other}").status_code == 404
        assert inside.delete(f"/v1/sandboxes/{box}").status_code == 403
        for path in ("/v1/session", "/v1/keys", "/v1/projects", "/v1/sandboxes", "/v1/events"):
            assert inside.get(path).status_code == 403, path
        assert owner.delete(f"/v1/sandboxes/{box}/tokens/{made['id']}").status_code == 204
        assert inside.get(f"/v1/sandboxes/{box}").status_code == 401
    owner.delete(f"/v1/sandboxes/{other}")


def test_a_sandboxs_token_makes_nothing_beside_it(server: Running, owner: httpx2.Client, box: str) -> None:
    token = owner.post(f"/v1/sandboxes/{box}/tokens", json={"role": "write"}).json()["token"]
    with server.client_of(None) as inside:
        inside.headers["authorization"] = f"Bearer {token}"
        assert inside.post(f"/v1/sandboxes/{box}/exec", json={"command": "true"}).status_code == 200
        for path, body in (
            (f"/v1/sandboxes/{box}/clone", {}),
            (f"/v1/sandboxes/{box}/fork", {"n": 2}),
            (f"/v1/sandboxes/{box}/snapshots", {}),
            (f"/v1/provider/sandboxes/{box}/snapshots", {}),
        ):
            assert code(inside.post(path, json=body)) == (403, "PERMISSION_DENIED"), path


def test_signing_in_too_often_from_one_address_is_refused(server: Running) -> None:
    waited = 0.0
    for _ in range(server.settings.sign_in_burst + 1):
        waited = server.context.sign_ins.take("127.0.0.7")
    assert waited > 1
    transport = httpx2.HTTPTransport(local_address="127.0.0.7")
    with httpx2.Client(base_url=server.url, transport=transport, headers={"origin": server.url}) as client:
        refused = client.post("/v1/session", json={"name": "guessed", "password": "x"})
        assert code(refused) == (429, "RATE_LIMITED")
        assert int(refused.headers["retry-after"]) >= 1


def test_nobody_is_locked_out_by_who_guesses_their_password(tmp_path: Path) -> None:
    """From other addresses, one after the other; and changing the password is not theirs to hinder."""
    server = Running(tmp_path, sign_in_burst=4, sign_in_rate=0.01)
    try:
        stored = server.call(lambda: server.context.passwords.hash(PASSWORD))
        server.user("admin")
        server.call(lambda: server.context.store.users.add("bob", password=stored))
        here = {"origin": server.url}

        def attempt(address: str, password: str) -> int:
            transport = httpx2.HTTPTransport(local_address=address)
            with httpx2.Client(base_url=server.url, transport=transport, headers=here, timeout=60) as client:
                return client.post("/v1/session", json={"name": "bob", "password": password}).status_code

        for number in range(10):
            attempt(f"127.0.1.{number % 3}", "wrong")
        assert [attempt("127.0.0.11", PASSWORD) for _ in range(2)] == [200, 200]
        for _ in range(4 * 20):  # as if from many addresses: all who try the name are slowed down
            server.context.names_tried.take("bob")
        began = time.monotonic()
        transport = httpx2.HTTPTransport(local_address="127.0.0.12")
        with httpx2.Client(base_url=server.url, transport=transport, headers=here, timeout=60) as client:
            client.post("/v1/session", json={"name": "bob", "password": PASSWORD}).raise_for_status()
            assert time.monotonic() - began > 0.5
            changed = client.put("/v1/password", json={"old": PASSWORD, "new": "another long one"})
            assert changed.status_code == 204, changed.text
    finally:
        server.stop()


def test_who_guesses_the_old_password_in_a_session_is_slowed_down(tmp_path: Path) -> None:
    server = Running(tmp_path, sign_in_burst=3, sign_in_rate=0.001)
    try:
        stored = server.call(lambda: server.context.passwords.hash(PASSWORD))
        bob = server.call(lambda: server.context.store.users.add("bob", password=stored))
        _, key = server.call(lambda: server.context.store.keys.add(bob.id, "test"))
        with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}) as client:
            body = {"old": "wrong", "new": "another long one"}
            assert [client.put("/v1/password", json=body).status_code for _ in range(4)] == [401, 401, 401, 429]
    finally:
        server.stop()


def test_the_addresses_of_one_network_are_slowed_down_together(tmp_path: Path) -> None:
    """Of IPv6 everybody has more than could be counted one by one."""
    server = Running(tmp_path, trusted_proxies=("127.0.0.1",), sign_in_burst=3)
    try:
        with server.client_of(None) as client:
            for number, (address, wanted) in enumerate(
                [(f"2001:db8::{number}", 401) for number in range(3)]
                + [("2001:db8::3:4", 429), ("2001:db8:0:1::", 401), ("192.0.2.1", 401), ("192.0.2.2", 401)]
            ):
                body = {"name": f"guess-{number}", "password": PASSWORD}
                refused = client.post("/v1/session", json=body, headers={"x-forwarded-for": address})
                assert refused.status_code == wanted, address
    finally:
        server.stop()


def test_changes_and_denials_are_in_the_audit_without_secrets(server: Running, admin: httpx2.Client, box: str) -> None:
    with server.client_of("stranger") as stranger:
        stranger.delete(f"/v1/sandboxes/{box}", headers={"x-request-id": "denied-1"})
    admin.post("/v1/users", json={"name": "audited", "password": PASSWORD}, headers={"x-request-id": "made-1"})
    text = admin.get("/v1/audit").text
    found = {item["request_id"]: item for item in admin.get("/v1/audit").json()["items"]}
    assert found["denied-1"]["actor"] == "user:stranger"
    assert found["denied-1"]["outcome"] == "SANDBOX_NOT_FOUND"
    assert found["denied-1"]["target"] == f"sandbox {box}"
    assert (found["made-1"]["operation"], found["made-1"]["outcome"]) == ("POST /v1/users", "ok")
    assert PASSWORD not in text and "sk_" not in text
    page = admin.get("/v1/audit?limit=2").json()
    more = admin.get(f"/v1/audit?limit=2&cursor={page['cursor']}").json()
    assert len(page["items"]) == len(more["items"]) == 2 and page["items"][-1] != more["items"][0]


def test_the_audit_names_what_was_made_and_where(server: Running, owner: httpx2.Client, admin: httpx2.Client) -> None:
    project, asked = server.project("owner").id, dict[str, str]()

    def make(path: str, body: dict[str, object], **headers: str) -> Any:
        asked[path] = f"asked-{len(asked)}"
        made = owner.post(path, json=body, headers=headers | {"x-request-id": asked[path]}).raise_for_status()
        return json.loads(made.text.splitlines()[-1])

    box = make("/v1/sandboxes", {"name": "audited-box"})["id"]
    at = f"/v1/sandboxes/{box}"
    copy = make(f"{at}/clone", {})["id"]
    forks = [item["sandbox"]["id"] for item in make(f"{at}/fork", {"n": 2})["items"]]
    told = make("/v1/sandboxes?followed", {"name": "followed"}, accept="application/x-ndjson")["sandbox"]["id"]
    raw = make("/v1/provider/sandboxes", {"name": "raw"})["id"]
    taken = make(f"{at}/snapshots", {"name": "kept"})["id"]
    make("/v1/volumes", {"name": "audited-data"})
    key, other = make("/v1/keys", {"name": "k"})["id"], make("/v1/projects", {"name": "audited-project"})["id"]
    until = time.monotonic() + 10
    entries: dict[str, Any] = {}
    while (
        not set(asked.values()) <= set(entries) and time.monotonic() < until
    ):  # the answer is sent before it is written
        entries = {item["request_id"]: item for item in admin.get("/v1/audit?limit=50").json()["items"]}
    assert {path: entries[asked[path]]["target"] for path in ("/v1/keys", "/v1/projects")} == {
        "/v1/keys": f"key {key} (k)",
        "/v1/projects": f"project {other} (audited-project)",
    }
    wanted = {
        "/v1/sandboxes": f"project {project}, sandbox {box} (audited-box)",
        "/v1/sandboxes?followed": f"project {project}, sandbox {told} (followed)",
        "/v1/provider/sandboxes": f"project {project}, sandbox {raw} (raw)",
        "/v1/volumes": f"project {project}, volume audited-data",
        f"{at}/clone": f"sandbox {box}, sandbox {copy}",
        f"{at}/fork": f"sandbox {box}, sandbox {forks[0]}, sandbox {forks[1]}",
        f"{at}/snapshots": f"sandbox {box}, snapshot {taken} (kept)",
    }
    assert {path: entries[asked[path]]["target"] for path in wanted} == wanted
    assert {entries[asked[path]]["project_id"] for path in wanted} == {project}
    for path in (*(f"/v1/sandboxes/{id}" for id in (box, copy, told, raw, *forks)), f"/v1/snapshots/{taken}"):
        owner.delete(path).raise_for_status()
    for path in ("/v1/volumes/audited-data", f"/v1/keys/{key}", f"/v1/projects/{other}"):
        owner.delete(path).raise_for_status()


def test_the_audit_names_what_was_changed(
    server: Running, admin: httpx2.Client, owner: httpx2.Client, box: str
) -> None:
    subject = admin.post("/v1/users", json={"name": "subject", "password": PASSWORD}).raise_for_status().json()["id"]
    project, key = server.project("owner").id, owner.post("/v1/keys", json={}).json()["id"]
    asked = {
        "a-1": (admin, "PATCH", "/v1/users/subject", {"admin": True}),
        "a-2": (admin, "DELETE", "/v1/users/unknown", None),
        "a-3": (owner, "PUT", f"/v1/projects/{project}/members/{subject}", {"role": "read"}),
        "a-4": (owner, "DELETE", f"/v1/keys/{key}", None),
        "a-5": (owner, "DELETE", f"/v1/sandboxes/{box}/tokens/0123", None),
    }
    for id, (client, method, path, body) in asked.items():
        client.request(method, path, json=body, headers={"x-request-id": id})
    with browser(server, **{"x-request-id": "a-6"}) as client:
        client.post("/v1/session", json={"name": "subject", "password": "wrong"})
    entries = admin.get("/v1/audit?limit=50").json()["items"]
    assert {item["outcome"] for item in entries if item["request_id"] in ("a-2", "a-5")} == {"NOT_FOUND"}
    found = {item["request_id"]: item["target"] for item in entries}
    assert [found[f"a-{number}"] for number in range(1, 6)] == [
        "user subject",
        "user unknown",
        f"project {project}, user {subject}",
        f"key {key}",
        f"sandbox {box}, token 0123",
    ]
    assert "user subject" in [item["target"] for item in entries if item["request_id"] == "a-6"]
    admin.delete("/v1/users/subject").raise_for_status()


@pytest.mark.parametrize("text", ["\x1b]0;PWNED\x07", "\x9b2J", "a\u202eb", "a\x7f", "\u2066a"])
def test_what_others_will_be_shown_holds_no_control_characters(server: Running, box: str, text: str) -> None:
    yaml = f'name: shown\nbase: host\ndescription: "{text.encode("unicode_escape").decode()}"\n'
    with server.client_of("owner") as client:
        for path, body in (
            ("/v1/keys", {"name": text}),
            ("/v1/projects", {"name": text}),
            (f"/v1/sandboxes/{box}/snapshots", {"name": "shown", "description": text}),
            (f"/v1/provider/sandboxes/{box}/snapshots", {"name": "shown", "description": text}),
            ("/v1/templates", {"yaml": yaml}),
        ):
            assert code(client.post(path, json=body)) == (400, "INVALID_ARGUMENT"), path
        assert client.post("/v1/keys", json={"name": "two\nlines"}).status_code == 400
        assert client.post("/v1/keys", json={"name": "Schlüssel für 作業 🔑"}).status_code == 201
        body = {"name": "fine", "description": "first line\nsecond\tline"}
        made = client.post(f"/v1/sandboxes/{box}/snapshots", json=body)
        assert made.json()["description"] == "first line\nsecond\tline"
        assert client.delete(f"/v1/snapshots/{made.json()['id']}").status_code == 204


HEADERS = """
import http.server, sys
class Tell(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(self.headers))
http.server.HTTPServer(("127.0.0.1", 8000), Tell).serve_forever()
"""


def test_the_session_of_a_browser_does_not_go_to_a_program_that_a_forward_leads_to(server: Running, mira: str) -> None:
    with Sandbox.create() as sandbox, signed_in(server, mira) as client:
        assert server.url.startswith("http://127.0.0.1:")
        sandbox.processes.spawn(["python3", "-c", HEADERS])
        for forward in (sandbox.ports.forward(8000, wait=30), sandbox.ports.forward(8000, host="0.0.0.0")):
            got = client.get(forward.url)
            assert "host: 127.0.0." in got.text.lower()
            assert "skerry=" not in got.text
        url = f"http://127.0.0.1:{forward.local_port}"
        assert "skerry=" in client.get(url).text  # the client is as a browser is: ports do not matter to it


def test_what_another_process_does_to_accounts_holds_here(server: Running) -> None:
    """As a tool that opens the database beside the server: a key of its making is good at once, and ends in a second."""

    async def elsewhere(remove: str | None = None) -> tuple[str, str]:
        store = Store.open(server.settings.database)
        try:
            if remove is not None:
                await store.keys.remove(remove)
                return "", ""
            key, text = await store.keys.add(store.accounts.find_user("owner").id, "elsewhere")
            return key.id, text
        finally:
            await store.close()

    server.user("owner")
    id, text = anyio.run(elsewhere)
    headers = {"authorization": f"Bearer {text}"}
    assert httpx2.get(f"{server.url}/v1/session", headers=headers).status_code == 200
    anyio.run(elsewhere, id)
    removed = time.monotonic()
    while httpx2.get(f"{server.url}/v1/session", headers=headers).status_code == 200:
        assert time.monotonic() - removed < 5
        time.sleep(0.05)
