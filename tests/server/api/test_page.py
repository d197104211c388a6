"""The API page and the OpenAPI document."""

from __future__ import annotations

import re

import httpx2
import pytest

from skerry.server.access.permissions import ROUTES, Action
from tests.server.conftest import Running


@pytest.fixture(scope="module")
def document(server: Running) -> dict[str, object]:
    with server.client_of(None) as anybody:
        found: dict[str, object] = anybody.get("/openapi.json").raise_for_status().json()
        return found


def _operations(document: dict[str, object]) -> list[tuple[str, str, dict[str, object]]]:
    paths = document["paths"]
    assert isinstance(paths, dict)
    return [(method.upper(), path, operation) for path, all in paths.items() for method, operation in all.items()]


def test_every_route_is_described(document: dict[str, object]) -> None:
    assert document["openapi"] == "3.1.0"
    rules = {(method, path.replace(":path}", "}")): rule for (method, path), rule in ROUTES.items()}
    ids = []
    for method, path, operation in _operations(document):
        where = f"{method} {path}"
        ids.append(operation["operationId"])
        assert operation["summary"] and operation["tags"], where
        answers = operation["responses"]
        assert isinstance(answers, dict)
        rule = rules[method, path]
        assert operation["security"] == ([] if rule.action is Action.OPEN else [{"key": []}, {"session": []}]), where
        for status in ("400", "429", "500") if rule.action is Action.OPEN else ("400", "401", "403", "404", "500"):
            assert "application/problem+json" in answers[status]["content"], (where, status)
        if path.startswith("/v1/sandboxes/"):
            assert "application/problem+json" in answers["422"]["content"], where
        assert any(status.startswith("2") for status in answers), where
    assert len(set(ids)) == len(ids)


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    with server.client_of(None) as anybody:
        page = anybody.get("/docs")
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
