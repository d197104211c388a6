"""What the server says about requests that are not valid."""

from __future__ import annotations

import httpx2
import pytest

from skerry.server.web.models.sandboxes import CreateSandbox

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "detail", "hint"),
    [
        ("{}", {}, "a body without a type is not read as JSON", "send the header Content-Type: application/json"),
        (
            "{}",
            {"content-type": "application/x-www-form-urlencoded"},
            "a body of the type application/x-www-form-urlencoded is not read as JSON",
            "send the header Content-Type: application/json",
        ),
        (
            "",
            {},
            "the request has no body",
            "send a JSON object with the header Content-Type: application/json",
        ),
        ("[1]", JSON, "the body must be a JSON object", "send something like {}"),
        ('{"nmae": "x"}', JSON, "there is no field 'nmae'", "did you mean 'name'?"),
        ('{"resources": {"mem": 1}}', JSON, "there is no field 'resources.mem'", "did you mean 'memory'?"),
        ('{"source": {"git": "x", "rf": "y"}}', JSON, "there is no field 'source.rf'", "did you mean 'ref'?"),
        (
            '{"env": {"A": 1}, "timeout": "s3cret"}',
            JSON,
            "'env.A': must be text; 'timeout': must be a number of seconds, or text",
            "",
        ),
        ('{"name": "x",\n "env": }', JSON, "the body is not JSON: expecting value at line 2, column 9", "names and"),
        ('{"name": "x', JSON, "the body is not JSON: unterminated string at line 1, column 10", "names and"),
    ],
)
def test_a_body_that_is_not_valid_is_explained(
    owner: httpx2.Client, content: str, headers: dict[str, str], detail: str, hint: str
) -> None:
    answer = owner.post("/v1/sandboxes", content=content, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "INVALID_ARGUMENT")
    assert problem["detail"].startswith(detail) and problem["hint"].startswith(hint), problem
    assert "s3cret" not in answer.text


def test_a_mount_with_a_wrong_field_is_explained_as_a_mount(owner: httpx2.Client) -> None:
    answer = owner.post("/v1/sandboxes", json={"volumes": [{"name": "x", "path": "/y", "readonly": True}]}).json()
    assert (answer["detail"], answer["hint"]) == ("there is no field 'volumes.0.readonly'", "did you mean 'read_only'?")


def test_no_body_takes_a_field_that_does_not_exist(owner: httpx2.Client) -> None:
    """A key that was to end, and would be for ever."""
    answer = owner.post("/v1/keys", json={"name": "x", "lifetme": 60}).json()
    assert (answer["detail"], answer["hint"]) == ("there is no field 'lifetme'", "did you mean 'lifetime'?")


def test_a_parameter_is_named_with_its_place(owner: httpx2.Client) -> None:
    assert owner.get("/v1/events?limit=0").json()["detail"].startswith("'limit': input should be")
    assert "'path' is missing from the query" in owner.get("/v1/signed/sb-1").json()["detail"]


def test_a_timeout_in_a_body_may_have_units() -> None:
    assert CreateSandbox.model_validate({"timeout": "1h30m", "auto_stop": 60}).timeout == 5400
    shown = CreateSandbox.model_json_schema()["properties"]["timeout"]
    assert {"number", "string"} <= {each.get("type") for each in shown["anyOf"]}, shown
