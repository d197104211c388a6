"""The OpenAPI document: what it must have so that clients can be generated from it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI
from schemathesis.specs.openapi.definitions import OPENAPI_31

from skerry.server.access.permissions import ROUTES, Action
from skerry.server.app import build_app
from skerry.server.settings import Settings
from skerry.server.web import document as documents
from skerry.server.web.problems import STATUS
from skerry.server.web.refusals import WORDS
from tests.server.conftest import Running


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    made = build_app(Settings(home=tmp_path_factory.mktemp("home")))
    yield made
    asyncio.run(made.state.context.store.close())


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return documents.document(app)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _references(found: object) -> Iterator[str]:
    if isinstance(found, dict):
        if isinstance(found.get("$ref"), str):
            yield found["$ref"].rpartition("/")[2]
        for value in found.values():
            yield from _references(value)
    elif isinstance(found, list):
        for value in found:
            yield from _references(value)


@pytest.mark.parametrize("internal", [False, True])
def test_it_follows_the_specification(app: FastAPI, internal: bool) -> None:
    made = documents.document(app, internal=internal)
    assert made["openapi"] == "3.1.0" and made["info"]["license"]["identifier"] == "Apache-2.0"
    errors = [str(error)[:500] for error in jsonschema_rs.validator_for(OPENAPI_31).iter_errors(made)]
    assert errors == []
    assert set(_references(made)) <= set(made["components"]["schemas"])


def test_every_route_is_in_one_of_the_two_documents(app: FastAPI, document: dict[str, Any]) -> None:
    internal = documents.document(app, internal=True)
    here, there = ({(method, path) for method, path, _ in _operations(each)} for each in (document, internal))
    assert all(path.startswith("/v1/provider") for _, path in there)
    assert not any(path.startswith("/v1/provider") for _, path in here)
    rules = {(method, path.replace(":path}", "}")) for method, path in ROUTES if method != "WS"}
    assert rules - here - there == {("GET", "/sign-in"), ("GET", "/docs/")}


def test_schemas_have_plain_names(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert {"Sandbox", "Resources", "ExecResult", "Key", "CreateSandbox", "Problem"} <= set(schemas)
    assert [name for name in schemas if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", name) or name.endswith("Model")] == []


def test_everything_has_a_description(app: FastAPI, document: dict[str, Any]) -> None:
    bare = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, shown in schema.get("properties", {}).items()
        if not shown.get("description", "").strip()
    ]
    ids = []
    internal = documents.document(app, internal=True)
    for method, path, operation in (*_operations(document), *_operations(internal)):
        assert not operation["summary"].endswith(".") and " " in operation["summary"], (method, path)
    for method, path, operation in _operations(document):
        ids.append(operation["operationId"])
        shown = [operation, {"description": operation["summary"]}, *operation.get("parameters", ())]
        bare += [f"{method} {path} {each}" for each in shown if not each.get("description", "").strip()]
    assert bare == []
    assert len(set(ids)) == len(ids) > 120
    text = json.dumps(document)
    assert re.findall(r".{20}\b(?:None|True|False)\b(?!-).{20}", text) == []


def test_tags_are_in_the_order_of_use(document: dict[str, Any]) -> None:
    names = [tag["name"] for tag in document["tags"]]
    assert names[0] == "sandboxes" and names == [tag for tag in documents.TAGS if tag != documents.INTERNAL]
    used = [operation["tags"][0] for _, _, operation in _operations(document)]
    assert list(dict.fromkeys(used)) == names


def test_an_operation_lists_the_errors_that_it_can_have(document: dict[str, Any]) -> None:
    for method, path, operation in _operations(document):
        where, rule = f"{method} {path}", ROUTES[method, path]
        errors = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        assert operation["security"] == ([] if rule.action is Action.OPEN else [{"key": []}, {"session": []}]), where
        assert any(int(status) < 300 for status in operation["responses"]), where
        assert (rule.action is Action.OPEN) <= ("401" not in errors or path.startswith(("/v1/signed", "/v1/session")))
        for status, answer in errors.items():
            assert answer["description"].startswith(WORDS[int(status)]), where
            assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert all(f"`{code}`" in answer["description"] for code in answer["x-codes"]), where
            if status not in ("412", "416"):
                assert {STATUS[code] for code in answer["x-codes"]} == {int(status)}, where

    def listed(path: str, method: str = "get") -> set[int]:
        return {int(status) for status in document["paths"][path][method]["responses"]}

    assert listed("/health") == {200, 400, 429, 500}
    assert listed("/v1/keys") == {200, 400, 401, 403, 429, 500, 503}
    assert listed("/v1/keys", "post") == {201, 400, 401, 403, 404, 413, 429, 500, 501, 503, 504, 507}
    read = document["paths"]["/v1/sandboxes/{sandbox}/files"]["get"]["responses"]
    assert read["404"]["x-codes"] == ["NOT_FOUND", "SANDBOX_NOT_FOUND", "FILE_NOT_FOUND"]


def test_it_is_served_with_the_address_of_the_server(server: Running) -> None:
    with server.client_of(None) as anybody:
        assert [each["url"] for each in anybody.get("/openapi.json").json()["servers"]] == [server.url]
        assert anybody.get("/v1/provider/openapi.json").json()["info"]["title"] == "Skerry, internal"
