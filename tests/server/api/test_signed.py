"""Signed URLs: one file, one method, until they expire, as long as their maker may."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from skerry.server.access.permissions import Role
from tests.server.conftest import Running


def _url(client: httpx2.Client, box: str, **body: Any) -> str:
    made = client.post(f"/v1/sandboxes/{box}/files/url", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["url"])


def test_a_url_reads_or_writes_its_file_and_nothing_else(owner: httpx2.Client, box: str) -> None:
    put = _url(owner, box, path="up & down.bin", method="PUT")
    with httpx2.Client() as anybody:
        assert anybody.put(put, content=b"by url").json()["size"] == 6
        get = _url(owner, box, path="up & down.bin")
        assert anybody.get(get).content == b"by url"
        assert anybody.get(get, headers={"range": "bytes=3-"}).content == b"url"
        assert anybody.get(put).status_code == anybody.put(get, content=b"x").status_code == 401
        place = urlsplit(get)
        fields = dict(parse_qsl(place.query))
        other = {
            "path": "/etc/passwd",
            "expires": str(int(fields["expires"]) + 1),
            "by": "us-000000000000",
            "user": "root",
            "signature": fields["signature"][:-2] + "AA",
        }
        for name, value in other.items():
            forged = anybody.get(place._replace(query=urlencode(fields | {name: value})).geturl())
            assert (forged.status_code, forged.json()["code"]) == (401, "UNAUTHENTICATED"), name
        elsewhere = anybody.get(place._replace(path="/v1/signed/sb-0000000000").geturl())
        assert elsewhere.json() == forged.json()
        assert anybody.get(place._replace(query="path=x").geturl()).status_code == 400


def test_a_url_ends_with_its_time(owner: httpx2.Client, box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.put(f"/v1/sandboxes/{box}/files", params={"path": "timed"}, content=b"x")
    url = _url(owner, box, path="timed", expires_in=60)
    with httpx2.Client() as anybody:
        assert anybody.get(url).status_code == 200
        import time

        now = time.time
        monkeypatch.setattr("skerry.server.api.v1.signed.time.time", lambda: now() + 62)
        assert anybody.get(url).status_code == 401


def test_a_url_ends_with_the_rights_of_its_maker(server: Running, owner: httpx2.Client, box: str) -> None:
    owner.put(f"/v1/sandboxes/{box}/files", params={"path": "f"}, content=b"x")
    project = server.project("owner")
    server.share(project, "maker", Role.WRITE)
    with server.client_of("maker") as maker, httpx2.Client() as anybody:
        url = _url(maker, box, path="f")
        put = _url(maker, box, path="f", method="PUT")
        assert anybody.get(url).status_code == 200
        server.share(project, "maker", Role.READ)
        assert maker.post(f"/v1/sandboxes/{box}/files/url", json={"path": "f"}).status_code == 403
        assert anybody.get(url).status_code == 200
        assert anybody.put(put, content=b"y").status_code == 401
        server.call(lambda: server.context.store.projects.set_member(project.id, server.user("maker").id, None))
        assert anybody.get(url).status_code == 401


def test_a_url_ends_with_the_key_it_was_made_with(server: Running, owner: httpx2.Client, box: str) -> None:
    owner.put(f"/v1/sandboxes/{box}/files", params={"path": "f"}, content=b"x")
    made = owner.post("/v1/keys", json={"scopes": ["write"]}).json()
    with server.client_of(None) as client, httpx2.Client() as anybody:
        client.headers["authorization"] = f"Bearer {made['key']}"
        url = _url(client, box, path="f")
        assert anybody.get(url).status_code == 200
        owner.delete(f"/v1/keys/{made['id']}").raise_for_status()
        assert anybody.get(url).status_code == 401
