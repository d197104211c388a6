"""The API page and the OpenAPI document."""

from __future__ import annotations

import re
import time

import httpx2
import pytest

from tests.server.conftest import Running


@pytest.fixture(scope="module")
def document(server: Running) -> dict[str, object]:
    with server.client_of(None) as anybody:
        found: dict[str, object] = anybody.get("/openapi.json").raise_for_status().json()
        return found


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    with server.client_of(None) as anybody:
        page = anybody.get("/docs")
        assert anybody.get("/docs/").text == page.text
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        wanted = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(wanted) == 5 and all(where.startswith("/docs/") for where in wanted)
        for where in wanted:
            asset = anybody.get(where)
            assert asset.status_code == 200 and asset.content, where
        for bad in ("/docs/..%2fapp.py", "/docs/%2e%2e/app.py", "/docs/index.html", "/docs/x"):
            assert anybody.get(bad).status_code == 404, bad


def test_models_of_answers_have_the_words_of_their_dataclasses(document: dict[str, object]) -> None:
    components = document["components"]
    assert isinstance(components, dict)
    sandbox = components["schemas"]["Sandbox"]
    assert sandbox["properties"]["reason"]["description"] == "Why it is failed or stopped, where it was not asked for."
    assert set(sandbox["required"]) == set(sandbox["properties"])


def test_an_unknown_place_is_a_problem_too(owner: httpx2.Client) -> None:
    nothing = owner.get("/v1/nothing")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "NOT_FOUND")
    wrong = owner.post("/v1/sandboxes/x/status")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/health", {}),
        ("/docs/", {}),
        ("/v1/sandboxes", {}),
        ("/v1/sandboxes/{box}", {}),
        ("/v1/sandboxes/{box}/files?path=/etc/passwd", {}),
        ("/v1/sandboxes/{box}/files?path=/nowhere", {}),
        ("/v1/sandboxes/{box}/directories?path=/etc", {}),
        ("/v1/sandboxes/{box}/watch", {}),
        ("/v1/events", {"accept": "text/event-stream"}),
    ],
)
def test_head_answers_as_get_without_a_body(owner: httpx2.Client, box: str, path: str, headers: dict[str, str]) -> None:
    """Also of an answer that has no end."""
    where, differs = path.format(box=box), {"date", "x-request-id", "transfer-encoding"}
    head = owner.head(where, headers=headers)
    with owner.stream("GET", where, headers=headers) as get:
        assert head.status_code == get.status_code
        shown, wanted = (
            {name: value for name, value in each.headers.items() if name not in differs} for each in (head, get)
        )
        assert shown == wanted and head.content == b""


def test_head_leaves_no_stream_behind(server: Running, owner: httpx2.Client) -> None:
    under_way = server.context.metrics.open
    assert owner.head("/v1/events", headers={"accept": "text/event-stream"}).status_code == 200
    end = time.monotonic() + 10
    while under_way["requests"] or under_way["event_streams"]:
        assert time.monotonic() < end, dict(under_way)
        time.sleep(0.01)
