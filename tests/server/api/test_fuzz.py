"""The whole API with requests made out of its own description: right ones, wrong ones, never a 5xx, never another form.

SKERRY_API_EXAMPLES says how many right ones an operation gets (2), and half as many wrong ones; `make soak` raises it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.server.conftest import Running

EXAMPLES = int(os.environ.get("SKERRY_API_EXAMPLES", "2"))
HONEST = {501: "UNSUPPORTED", 504: "TIMEOUT"}
"""Statuses above 499 that say the truth about a request; all others are faults of the server."""
PATIENCE = 0.2
SPENT = ("{sandbox}", "/limits", "/deadline", "/lease", "/restart")
"""A sandbox that was changed by these may end at any moment, or have room for nothing: the next case gets another."""

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def fuzzer(server: Running) -> Iterator[httpx2.Client]:
    with server.client_of("fuzzer") as client:
        yield client
        for kind in ("sandboxes", "snapshots", "volumes"):
            for item in client.get(f"/v1/{kind}", params={"limit": 1000}).json()["items"]:
                removed = client.delete(f"/v1/{kind}/{item.get('id', item['name'])}")
                assert removed.status_code in (204, 404), removed.text  # a case may have given it a short life


class Target:
    """Sends cases, most of them to a sandbox that is there."""

    def __init__(self, server: Running, client: httpx2.Client) -> None:
        self._server, self._client = server, client
        self._box = ""

    def box(self) -> str:
        """A sandbox that runs; a case may have ended the last one."""
        if not self._box or self._client.post(f"/v1/sandboxes/{self._box}/start", json={}).status_code != 200:
            self._drop()
            self._box = self._client.post("/v1/sandboxes", json={}).raise_for_status().json()["id"]
        return self._box

    def _drop(self) -> None:
        if self._box:
            self._client.delete(f"/v1/sandboxes/{self._box}")
        self._box = ""

    def tame(self, case: Any) -> None:
        """Nothing waits long, makes hundreds of sandboxes or calls strangers; the sandbox is one that is there."""
        path, query, body = case.operation.path, case.query or {}, case.body
        if "sandbox" in (case.path_parameters or {}):
            case.path_parameters["sandbox"] = self.box()
        if path.endswith(("/wait", "/health", "/instructions")) and isinstance(query.get("timeout", 60), int | float):
            case.query = {**query, "timeout": min(query.get("timeout", 60), PATIENCE)}
        if isinstance(body, dict):
            if isinstance(body.get("n"), int):
                body["n"] = min(body["n"], 2)
            for name in ("timeout", "idle_timeout", "auto_stop"):
                if isinstance(body.get(name), int | float) and path.endswith(("/exec", "/code", "/clone")):
                    body[name] = min(body[name], PATIENCE)
            if path.endswith("webhooks") and isinstance(body.get("url"), str):
                body["url"] = "http://127.0.0.1:9/"

    def check(self, case: Any) -> None:
        self.tame(case)
        made = case.as_transport_kwargs(base_url=self._server.url)
        headers = {**made.pop("headers", {}), "authorization": self._client.headers["authorization"]}
        try:
            response = requests.request(**made, headers=headers, timeout=20, stream=True)
            with response:
                endless = response.headers.get("content-type") == "text/event-stream"
                content = b"" if endless else response.content
        except requests.exceptions.Timeout as late:
            raise AssertionError(f"no answer: {made}") from late
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader, UnicodeEncodeError):
            return  # nothing that could be sent
        finally:
            if case.method != "GET" and case.operation.path.endswith(SPENT):
                self._drop()
        if response.status_code == 431:
            return  # a header too large for any request, refused before it is known for which
        where = f"{case.method} {case.operation.path} -> {response.status_code} {content[:500]!r}; {made}"
        documented = case.operation.definition.raw["responses"]
        assert str(response.status_code) in documented, f"not documented: {where}"
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json", where
            problem = json.loads(content) if case.method != "HEAD" else {}
            assert problem["status"] == response.status_code, where
            assert problem["code"] in documented[str(response.status_code)]["x-codes"], where
            if response.status_code >= 500:
                assert HONEST.get(response.status_code) == problem["code"], where
        elif response.headers.get("content-type") == "application/json":
            case.validate_response(response, checks=[response_schema_conformance])


@pytest.fixture(scope="module")
def target(server: Running, fuzzer: httpx2.Client) -> Target:
    return Target(server, fuzzer)


@pytest.fixture(scope="module")
def operations(server: Running) -> list[Any]:
    with server.client_of(None) as anybody:
        made = [anybody.get(path).json() for path in ("/openapi.json", "/v1/provider/openapi.json")]
    for path in [
        path for document in made for path in document["paths"].values()
    ]:  # it cannot make every kind of bytes
        for operation in path.values():
            content = operation.get("requestBody", {}).get("content", {})
            for kind in [kind for kind in content if kind.startswith(("application/vnd.skerry", "application/x-"))]:
                content["application/octet-stream"] = content.pop(kind)
    schemas = [schemathesis.openapi.from_dict(document) for document in made]
    return [result.ok() for schema in schemas for result in schema.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.timeout(14400 if EXAMPLES > 2 else 300)
def test_no_request_breaks_the_server(target: Target, operations: list[Any], mode: GenerationMode) -> None:
    assert len(operations) > 80
    failures: list[str] = []
    for operation in operations:

        @seed(7)
        @settings(
            max_examples=EXAMPLES if mode is GenerationMode.POSITIVE else max(1, EXAMPLES // 2),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            target.check(case)

        try:
            run()
        except Unsatisfiable:
            continue  # there is no wrong way to ask for it
        except (AssertionError, FailureGroup, requests.exceptions.Timeout) as failure:
            failures.append(f"{operation.method} {operation.path}: {str(failure)[:1500]}")
    assert not failures, "\n\n".join(failures)
