"""Commands, code, processes and terminals over HTTP."""

from __future__ import annotations

import base64
import json
import time

import httpx2
import pytest

from skerry.core.cut import Cut, text_of
from skerry.core.problems import result_from_json
from tests.server.conftest import Running


def test_a_command_runs_and_its_result_is_exact(owner: httpx2.Client, box: str) -> None:
    done = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "echo hello; echo no >&2; exit 3"}).json()
    assert (done["exit_code"], done["stdout"], done["stderr"], done["status"]) == (3, "hello\n", "no\n", "exited")
    assert done["stdout_base64"] is None and done["ok"] is False
    raw = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": ["printf", "\\377\\000a"]}).json()
    assert base64.b64decode(raw["stdout_base64"]) == b"\xff\0a"
    echoed = owner.post(
        f"/v1/sandboxes/{box}/exec",
        json={"command": "cat; echo $A $PWD", "stdin_base64": "AAEC", "env": {"A": "b"}, "cwd": "/tmp"},
    ).json()
    assert echoed["stdout"] == "\0\1\2b /tmp\n"
    long = ["sh", "-c", "echo $#", "sh", *["x" * 100_000] * 12]
    assert owner.post(f"/v1/sandboxes/{box}/exec", json={"command": long}).json()["stdout"] == "12\n"


def test_errors_of_commands_are_problems_that_carry_the_result(owner: httpx2.Client, box: str) -> None:
    failed = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "echo why >&2; exit 4", "check": True})
    assert (failed.status_code, failed.json()["code"]) == (422, "COMMAND_FAILED")
    assert failed.json()["result"]["exit_code"] == 4
    missing = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": ["no-such-program"]})
    assert (missing.status_code, missing.json()["code"]) == (404, "COMMAND_NOT_FOUND")
    late = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "sleep 60", "timeout": 0.2}).json()
    assert (late["status"], late["timed_out"], late["exit_code"]) == ("timed_out", True, None)
    both = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "cat", "stdin": "a", "stdin_base64": "YQ=="})
    assert (both.status_code, both.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_output_that_would_fill_the_memory_as_json_is_for_a_stream(owner: httpx2.Client, box: str) -> None:
    body = {"command": "true", "output_limit": 64 << 20}
    refused = owner.post(f"/v1/sandboxes/{box}/exec", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_output_streams_as_it_comes_and_ends_with_the_exit(owner: httpx2.Client, box: str) -> None:
    body = {"command": "echo one; sleep 0.5; echo two >&2; exit 5"}
    headers = {"accept": "application/x-ndjson"}
    began, first = time.monotonic(), 0.0
    lines = []
    with owner.stream("POST", f"/v1/sandboxes/{box}/exec", json=body, headers=headers) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        for line in answer.iter_lines():
            lines.append(json.loads(line))
            first = first or time.monotonic() - began
    assert first < 0.45
    assert [(line["stream"], base64.b64decode(line["data_base64"])) for line in lines[:-1]] == [
        ("stdout", b"one\n"),
        ("stderr", b"two\n"),
    ]
    assert (lines[-1]["type"], lines[-1]["result"]["exit_code"]) == ("exit", 5)


def test_a_client_that_goes_takes_its_command_with_it(owner: httpx2.Client, server: Running, box: str) -> None:
    for headers in ({}, {"accept": "application/x-ndjson"}):
        with server.client_of("owner") as other:
            mark = f"sleep 98{len(headers)}1"
            try:
                with other.stream(
                    "POST",
                    f"/v1/sandboxes/{box}/exec",
                    json={"command": f"echo go; {mark}"},
                    headers=headers,
                    timeout=1,
                ) as answer:
                    next(answer.iter_lines())
            except httpx2.TimeoutException:
                pass
        end = time.monotonic() + 20
        while (
            owner.post(f"/v1/sandboxes/{box}/exec", json={"command": ["pgrep", "-fx", mark]}).json()["exit_code"] == 0
        ):
            assert time.monotonic() < end, "the command runs on"
            time.sleep(0.1)


def test_code_runs_in_its_language(owner: httpx2.Client, box: str) -> None:
    done = owner.post(f"/v1/sandboxes/{box}/code", json={"code": "print(6 * 7)"}).json()
    assert (done["result"], done["exit_code"]) == ("42\n", 0)
    other = owner.post(f"/v1/sandboxes/{box}/code", json={"code": "1", "language": "cobol"})
    assert (other.status_code, other.json()["code"], other.json()["option"]) == (501, "UNSUPPORTED", "language")
    late = {"code": "print('begun', flush=True)\nwhile True: pass", "timeout": 1}
    done = owner.post(f"/v1/sandboxes/{box}/code", json=late).json()
    assert (done["status"], done["timed_out"], done["ok"], done["result"]) == ("timed_out", True, False, "begun\n")
    command = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "true"}).json()
    assert done.keys() == command.keys() | {"result"}
    failed = owner.post(f"/v1/sandboxes/{box}/code", json={**late, "check": True})
    assert (failed.status_code, failed.json()["code"]) == (504, "TIMEOUT")


def test_output_that_is_not_complete_has_a_mark_and_its_exact_bytes(owner: httpx2.Client, box: str) -> None:
    body = {"command": "seq 1 100000", "output_limit": 200}
    done = owner.post(f"/v1/sandboxes/{box}/exec", json=body).json()
    assert "36\n[… 588,699 bytes left out …]\n99985\n" in done["stdout"]
    assert len(base64.b64decode(done["stdout_base64"])) == 200
    assert (done["stdout_cut"], done["stderr_cut"]) == ({"at": 100, "size": 588_695}, None)
    failed = owner.post(f"/v1/sandboxes/{box}/exec", json={**body, "command": "seq 1 100000; exit 1", "check": True})
    assert result_from_json(failed.json()["result"]).stdout == done["stdout"]


@pytest.mark.parametrize(
    "command", ["seq 1 100000", "head -c 300000 /dev/zero | tr '\\0' 'x'", "head -c 300000 /dev/urandom"]
)
def test_large_output_that_is_not_complete_has_a_mark_too(owner: httpx2.Client, box: str, command: str) -> None:
    body = {"command": command, "output_limit": 100_000}
    done = owner.post(f"/v1/sandboxes/{box}/exec", json=body).json()
    data, cut = base64.b64decode(done["stdout_base64"]), Cut(**done["stdout_cut"])
    assert len(data) == 100_000
    assert "bytes left out …]" in done["stdout"] and done["stdout"] == text_of(data, cut)


def test_a_process_is_fed_read_signalled_and_waited_for(owner: httpx2.Client, box: str) -> None:
    at = f"/v1/sandboxes/{box}/processes"
    made = owner.post(at, json={"command": "while read line; do echo got $line; done; echo bye", "stdin": True})
    assert made.status_code == 201, made.text
    one = f"{at}/{made.json()['id']}"
    assert owner.get(one).json()["status"] == "running"
    assert made.json()["id"] in [item["id"] for item in owner.get(at).json()["items"]]
    for text in ("a\n", "b\n"):
        assert owner.post(f"{one}/stdin", json={"data": text}).status_code == 204
    since, seen = 0, ""
    end = time.monotonic() + 20
    while seen != "got a\ngot b\n":
        out = owner.get(f"{one}/output", params={"since_stdout": since}).json()
        seen, since = seen + out["stdout"], out["next"][0]
        assert time.monotonic() < end, seen
    late = owner.get(f"{one}/wait", params={"timeout": 0.1})
    assert (late.status_code, late.json()["code"]) == (504, "TIMEOUT")
    assert owner.post(f"{one}/stdin", json={"close": True}).status_code == 204
    done = owner.get(f"{one}/wait", params={"timeout": 20}).json()
    assert (done["exit_code"], done["stdout"]) == (0, "got a\ngot b\nbye\n")
    again = owner.post(f"{one}/signal", json={"signal": 15})
    assert again.status_code == 204
    unknown = owner.post(f"{at}/4711/signal", json={"signal": 15})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "PROCESS_NOT_FOUND")
    other = owner.post(at, json={"command": ["sleep", "100"]}).json()["id"]
    assert owner.delete(f"{at}/{other}").status_code == 204
    assert owner.get(f"{at}/{other}/wait", params={"timeout": 20}).json()["signal"] == 9


def test_a_terminal_is_typed_into_read_resized_and_closed(owner: httpx2.Client, box: str) -> None:
    at = f"/v1/sandboxes/{box}/terminals"
    made = owner.post(at, json={"command": ["sh"], "cols": 100, "rows": 30}).json()
    one = f"{at}/{made['id']}"
    assert (made["cols"], made["rows"]) == (100, 30)
    assert owner.post(f"{one}/resize", json={"cols": 77, "rows": 11}).status_code == 204
    assert owner.post(f"{one}/input", json={"data": "stty size; echo do''ne\n"}).status_code == 204
    since, seen = 0, ""
    end = time.monotonic() + 20
    while "\ndone" not in seen:
        out = owner.get(f"{one}/output", params={"since": since}).json()
        seen, since = seen + out["data"], out["next"]
        assert time.monotonic() < end, seen
    assert "11 77" in seen
    assert owner.get(one).json()["cols"] == 77
    assert owner.post(f"{one}/input", json={"data": "exit 7\n"}).status_code == 204
    assert owner.get(f"{one}/wait", params={"timeout": 20}).json()["exit_code"] == 7
    other = owner.post(at, json={}).json()["id"]
    assert owner.delete(f"{at}/{other}").status_code == 204
