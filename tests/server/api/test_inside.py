"""Variables, repositories, ports and watches over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Running


@pytest.fixture(scope="module")
def at(box: str) -> str:
    return f"/v1/sandboxes/{box}"


def _ok(answer: httpx2.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def _exec(owner: httpx2.Client, at: str, command: str) -> str:
    return str(_ok(owner.post(f"{at}/exec", json={"command": command, "check": True}))["stdout"])


def test_variables_are_set_and_removed_for_later_commands(owner: httpx2.Client, at: str) -> None:
    changed = _ok(owner.patch(f"{at}/env", json={"set": {"ONE": "1", "TWO": "a\nb"}}))["env"]
    assert (changed["ONE"], changed["TWO"]) == ("1", "a\nb")
    assert _exec(owner, at, "echo $ONE") == "1\n"
    assert "ONE" not in _ok(owner.patch(f"{at}/env", json={"unset": ["ONE"]}))["env"]
    assert _ok(owner.get(f"{at}/env"))["env"]["TWO"] == "a\nb"
    assert owner.patch(f"{at}/env", json={"set": {"": "x"}}).status_code == 400


def test_a_repository_is_cloned_changed_and_pushed(owner: httpx2.Client, at: str) -> None:
    _exec(
        owner,
        at,
        "git init -q --bare -b main up.git && git clone -q up.git seed 2>/dev/null && cd seed && git checkout -qb main"
        " && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m zero && git push -q origin main",
    )
    git = f"{at}/git"
    assert _ok(owner.post(f"{git}/clone", json={"url": "/workspace/up.git", "path": "w"}))["path"] == "/workspace/w"
    again = owner.post(f"{git}/clone", json={"url": "/workspace/up.git", "path": "w"})
    assert (again.status_code, again.json()["code"]) == (409, "ALREADY_EXISTS")
    owner.put(f"{at}/files", params={"path": "w/f.txt"}, content=b"text\n").raise_for_status()
    status = _ok(owner.get(f"{git}/status", params={"path": "w"}))
    assert (status["branch"], [item["path"] for item in status["files"]]) == ("main", ["f.txt"])
    assert owner.post(f"{git}/add", json={"path": "w", "paths": ["f.txt"]}).status_code == 204
    assert "+text" in _ok(owner.get(f"{git}/diff", params={"path": "w", "staged": True}))["diff"]
    made = _ok(
        owner.post(
            f"{git}/commit", json={"path": "w", "message": "one", "author_name": "A", "author_email": "a@example.com"}
        ),
        201,
    )
    log = _ok(owner.get(f"{git}/log", params={"path": "w", "limit": 1}))["items"]
    assert [commit["id"] for commit in log] == [made["id"]]
    assert owner.post(f"{git}/branches", json={"path": "w", "name": "side"}).status_code == 204
    assert owner.post(f"{git}/checkout", json={"path": "w", "ref": "side"}).status_code == 204
    names = [branch["name"] for branch in _ok(owner.get(f"{git}/branches", params={"path": "w"}))["items"]]
    assert names[:2] == ["main", "side"]
    assert owner.post(f"{git}/checkout", json={"path": "w", "ref": "main"}).status_code == 204
    assert owner.delete(f"{git}/branches", params={"path": "w", "name": "side"}).status_code == 204
    assert owner.post(f"{git}/push", json={"path": "w"}).status_code == 204
    pulled = _ok(owner.post(f"{git}/pull", json={"path": "seed"}))
    assert pulled["id"] == made["id"]
    nothing = owner.post(f"{git}/commit", json={"path": "w", "message": "none"})
    assert (nothing.status_code, nothing.json()["code"]) == (422, "GIT_FAILED")
    assert nothing.json()["result"]["exit_code"] != 0
    assert owner.get(f"{git}/status", params={"path": "/tmp"}).json()["code"] == "REPOSITORY_NOT_FOUND"


def test_ports_are_seen_and_waited_for(owner: httpx2.Client, at: str) -> None:
    late = owner.get(f"{at}/ports/8123/wait", params={"timeout": 0.1})
    assert (late.status_code, late.json()["code"]) == (504, "TIMEOUT")
    command = ["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"]
    process = _ok(owner.post(f"{at}/processes", json={"command": command}), 201)["id"]
    assert _ok(owner.get(f"{at}/ports/8123/wait", params={"timeout": 30}))["address"] == "127.0.0.1"
    assert 8123 in [item["port"] for item in _ok(owner.get(f"{at}/ports"))["items"]]
    owner.delete(f"{at}/processes/{process}")
    assert owner.get(f"{at}/ports/70000/wait").status_code == 400


def _events(answer: httpx2.Response) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_changes_of_files_come_as_events(owner: httpx2.Client, at: str) -> None:
    _ok(owner.post(f"{at}/files/mkdir", json={"path": "seen"}), 201)
    with owner.stream("GET", f"{at}/watch", params={"path": "seen"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        events = _events(answer)
        assert next(events) == ("ready", {})
        threading.Thread(target=_exec, args=(owner, at, "touch seen/a; mv seen/a seen/b; rm -r seen")).start()
        got = [(kind, data["path"]) for kind, data in events]
    assert got[0] == ("created", "a") and got[-1] == ("removed", "")
    assert ("renamed", "b") in got
    missing = owner.get(f"{at}/watch", params={"path": "nowhere"})
    assert (missing.status_code, missing.json()["code"]) == (404, "FILE_NOT_FOUND")


def test_a_watch_ends_when_its_client_goes(owner: httpx2.Client, server: Running, at: str) -> None:
    for _ in range(40):  # a sandbox has 32
        with server.client_of("owner") as other, other.stream("GET", f"{at}/watch") as answer:
            end = time.monotonic() + 20
            while answer.status_code == 403:  # QUOTA_EXCEEDED: the one before is on its way out
                assert time.monotonic() < end
            assert answer.status_code == 200, answer.read()
            assert next(_events(answer))[0] == "ready"


def test_templates_are_listed_shown_and_built_with_their_log(server: Running, owner: httpx2.Client) -> None:
    names = [item["name"] for item in _ok(owner.get("/v1/templates"))["items"]]
    assert {"python", "debian"} <= set(names)
    assert _ok(owner.get("/v1/templates/python"))["built"] is False
    assert owner.get("/v1/templates/no-such").json()["code"] == "TEMPLATE_NOT_FOUND"
    yaml = "name: logged\nbase: host\nscripts:\n  build:\n    - echo from the build\n    - touch /workspace/built\n"
    with owner.stream(
        "POST", "/v1/templates", json={"yaml": yaml}, headers={"accept": "application/x-ndjson"}
    ) as answer:
        lines = [json.loads(line) for line in answer.iter_lines() if line]
    assert lines[-1]["type"] == "done" and lines[-1]["template"]["built"] is True, lines
    assert "from the build\n" in "".join(line["text"] for line in lines if line["type"] == "log")
    assert any(line["type"] == "progress" for line in lines)
    made = _ok(owner.post("/v1/sandboxes", json={"template": "logged", "build": False}), 201)["id"]
    assert _exec(owner, f"/v1/sandboxes/{made}", "ls") == "built\n"
    owner.delete(f"/v1/sandboxes/{made}")
    assert owner.delete("/v1/templates/logged").status_code == 403
    with server.client_of("admin") as admin:
        assert admin.delete("/v1/templates/logged").status_code == 204

    broken = {"yaml": yaml.replace("touch /workspace/built", "exit 3").replace("logged", "broken")}
    failed = owner.post("/v1/templates", json=broken)
    assert (failed.status_code, failed.json()["code"]) == (422, "TEMPLATE_BUILD_FAILED")
    assert failed.json()["step"]
    with owner.stream("POST", "/v1/templates", json=broken, headers={"accept": "text/event-stream"}) as answer:
        last = list(_events(answer))[-1]
    assert (last[0], last[1]["code"]) == ("error", "TEMPLATE_BUILD_FAILED")
    for body in (
        {"template": "/etc/passwd"},
        {"template": "x.yaml"},
        {"yaml": "name: x\nbase:\n  image: /etc/passwd\n"},
        {"image": "/etc/passwd", "name": "x"},
        {"image": "docker://localhost:5000/app", "name": "x"},
        {"yaml": "name: x\nbase: {image: 'docker://[::1]:5000/app'}\n"},
        {"yaml": "name: x\nbase: host\nfiles:\n  /x:\n    source: /etc/passwd\n"},
        {},
    ):
        refused = owner.post("/v1/templates", json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT"), (body, refused.text)


def test_nobody_puts_something_else_under_the_name_of_another_s_template(server: Running, owner: httpx2.Client) -> None:
    def yaml(word: str, version: str = "1") -> dict[str, str]:
        return {"yaml": f"name: ours\nversion: '{version}'\nbase: host\nfiles:\n  /workspace/whose: {word}\n"}

    def whose() -> str:
        made = _ok(owner.post("/v1/sandboxes", json={"template": "ours", "build": False}), 201)["id"]
        try:
            return _exec(owner, f"/v1/sandboxes/{made}", "cat whose")
        finally:
            owner.delete(f"/v1/sandboxes/{made}")

    with server.client_of("stranger") as stranger, server.client_of("admin") as admin:
        _ok(owner.post("/v1/templates", json=yaml("owner")))
        for body in (yaml("stranger"), yaml("stranger", "2"), {"image": "docker://evil", "name": "ours:3"}):
            refused = stranger.post("/v1/templates", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT"), refused.text
        assert whose() == "owner"
        _ok(owner.post("/v1/templates", json=yaml("owner again")))
        assert whose() == "owner again"
        assert admin.delete("/v1/templates/ours").status_code == 204
        failed = stranger.post("/v1/templates", json={"yaml": "name: ours\nbase: host\nscripts: {build: exit 1}\n"})
        assert failed.json()["code"] == "TEMPLATE_BUILD_FAILED"
        _ok(owner.post("/v1/templates", json=yaml("owner")))  # what failed holds no name
        assert admin.delete("/v1/templates/ours").status_code == 204


def test_an_alias_belongs_to_who_built_a_template_under_it(server: Running, owner: httpx2.Client) -> None:
    def yaml(name: str, *aliases: str) -> dict[str, str]:
        listed = "".join(f"  - {alias}\n" for alias in aliases)
        return {"yaml": f"name: {name}\nbase: host\n" + (f"aliases:\n{listed}" if aliases else "")}

    with server.client_of("stranger") as stranger, server.client_of("admin") as admin:
        _ok(owner.post("/v1/templates", json=yaml("owners-tool", "company-base")))
        for body in (yaml("company-base"), yaml("strangers", "company-base"), yaml("strangers", "owners-tool")):
            refused = stranger.post("/v1/templates", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT"), refused.text
        noted = server.call(lambda: server.context.store.ownership.get("template", "company-base"))
        assert noted is not None and noted.project_id == server.project("owner").id and not noted.gone
        assert server.call(lambda: server.context.store.ownership.get("template", "strangers")).gone  # type: ignore[union-attr]
        _ok(owner.post("/v1/templates", json=yaml("owners-tool", "tool")))  # beside the first, which keeps its alias
        assert stranger.post("/v1/templates", json=yaml("company-base")).status_code == 409
        while admin.delete("/v1/templates/owners-tool").status_code == 204:
            pass
        for name in ("owners-tool", "tool", "company-base"):
            assert server.context.store.accounts.owned("template", name) is None, name
        _ok(stranger.post("/v1/templates", json=yaml("company-base")))
        assert admin.delete("/v1/templates/company-base").status_code == 204


def test_an_alias_built_before_aliases_were_noted_is_still_its_builders(server: Running, owner: httpx2.Client) -> None:
    body = {"yaml": "name: older-tool\nbase: host\naliases:\n  - older\n"}
    _ok(owner.post("/v1/templates", json=body))
    server.call(lambda: server.context.store.db.execute("DELETE FROM belongings WHERE kind='template' AND id='older'"))
    with server.client_of("stranger") as stranger, server.client_of("admin") as admin:
        assert stranger.post("/v1/templates", json={"yaml": "name: older\nbase: host\n"}).status_code == 409
        _ok(owner.post("/v1/templates", json=body | {"force": True}))
        assert admin.delete("/v1/templates/older-tool").status_code == 204


def test_what_comes_with_skerry_is_built_again_by_administrators_alone(owner: httpx2.Client) -> None:
    refused = owner.post("/v1/templates", json={"template": "debian", "force": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")


def test_a_key_of_one_project_builds_no_template(server: Running) -> None:
    key = server.key("owner", project=server.project("owner").id)
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=60) as bound:
        assert bound.get("/v1/templates").status_code == 200
        refused = bound.post("/v1/templates", json={"yaml": "name: bound\nbase: host\n"})
        assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")


def test_a_create_is_asked_for_again_while_the_first_is_given_up(server: Running, owner: httpx2.Client) -> None:
    yaml = "name: slow-start\nbase: host\nscripts:\n  postCreate: sleep 3\n"
    _ok(owner.post("/v1/templates", json={"yaml": yaml}))
    body = {"template": "slow-start", "metadata": {"slow": "start"}}
    key = {"idempotency-key": "slow-start"}
    answers: list[httpx2.Response] = []

    def create() -> None:
        with server.client_of("owner") as other:
            answers.append(other.post("/v1/sandboxes", json=body, headers=key))

    again = threading.Thread(target=create)
    starter = threading.Timer(0.7, again.start)
    starter.start()
    with server.client_of("owner") as first, pytest.raises(httpx2.ReadTimeout):
        first.post("/v1/sandboxes", json=body, headers=key, timeout=1.5)
    starter.join()
    again.join()
    made = _ok(answers[0], 201)["id"]
    listed = _ok(owner.get("/v1/sandboxes", params={"metadata.slow": "start"}))["items"]
    assert [item["id"] for item in listed] == [made]
    owner.delete(f"/v1/sandboxes/{made}")
    with server.client_of("admin") as admin:
        assert admin.delete("/v1/templates/slow-start").status_code == 204
