"""What clients may do wrong, and how long things may take."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.server.conftest import Running


def test_a_command_that_runs_for_long_is_not_idle(
    server: Running, owner: httpx2.Client, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that nobody uses are closed after a while; one with a command on it is used."""
    monkeypatch.setattr("skerry.server.projects.sandboxes.IDLE", 0.0)
    results: list[httpx2.Response] = []

    def run() -> None:
        with server.client_of("owner") as other:
            results.append(other.post(f"/v1/sandboxes/{box}/exec", json={"command": "touch go; sleep 2; echo end"}))

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 20
    while owner.get(f"/v1/sandboxes/{box}/files/stat", params={"path": "go"}).status_code != 200:
        assert time.monotonic() < end
    for _ in range(3):
        server.call(server.context.sandboxes.close_idle)
    thread.join()
    assert results[0].json().get("stdout") == "end\n", results[0].text
    server.call(server.context.sandboxes.close_idle)
    assert not server.context.sandboxes._open


def _pieces(size: int) -> Iterator[bytes]:
    yield b'{"command": "'
    for _ in range(size >> 16):
        yield b"x" * (1 << 16)
    yield b'"}'


def test_bodies_above_the_limit_are_refused_before_they_are_read(owner: httpx2.Client, box: str) -> None:
    for content in (b"x" * (2 << 20), _pieces(2 << 20)):
        answer = owner.post(
            f"/v1/sandboxes/{box}/processes", content=content, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE"), answer.text
    stdin = "y" * (8 << 20)
    done = owner.post(f"/v1/sandboxes/{box}/exec", json={"command": "wc -c", "stdin": stdin})
    assert done.json()["stdout"].strip() == str(8 << 20)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"command": 5}',
        b'{"command": null}',
        b'{"command": []}',
        b'{"command": {"a": 1}}',
        b'{"command": "a\\u0000b"}',
        b'{"command": "\\ud800"}',
        b'{"command": "a", "timeout": "soon"}',
        b'{"command": "a", "timeout": NaN}',
        b'{"command": "a", "timeout": 1e999}',
        b'{"command": "a", "timeout": -1}',
        b'{"command": "a", "output_limit": 99999999999999999999}',
        b'{"command": "a", "env": {"a": 1}}',
        b'{"command": "a", "env": [1]}',
        b'{"command": "a", "stdin_base64": "!"}',
        b'{"command": "a", "user": 0}',
        b'{"command": "a", "unknown": true}',
        json.dumps({"command": "a", "env": "x" * 100_000}).encode(),
        b"[" * 100_000,
        b'{"command": ' + b"1" * 5000 + b"}",
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_what_makes_no_sense_is_refused_and_named(owner: httpx2.Client, box: str, body: bytes) -> None:
    answer = owner.post(f"/v1/sandboxes/{box}/exec", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT"), answer.text[:500]
    assert "99999999999999999999" not in answer.text


def test_ids_that_lead_elsewhere_lead_nowhere(owner: httpx2.Client) -> None:
    for bad in (
        "%2e%2e",
        "..%2f..%2fetc",
        "%00",
        "a" * 5000,
        "sb-..%2f..",
        "sb-%00",
        "%ff",
        "ü",
        "*",
        "sb-*",
        "sb-" + "a" * 5000,
    ):
        for route in ("", "/files?path=x", "/processes/1", "/snapshots"):
            answer = owner.get(f"/v1/sandboxes/{bad}{route}")
            assert answer.status_code in (400, 404), (bad, route, answer.text[:300])
        for kind in ("snapshots", "volumes", "templates"):
            assert owner.get(f"/v1/{kind}/{bad}").status_code in (400, 404), (kind, bad)


def test_a_body_that_drips_is_given_up(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not signed in could keep a connection for days with each of them."""
    monkeypatch.setattr("skerry.server.web.guard.BODY_PATIENCE", 0.5)
    monkeypatch.setattr("skerry.server.web.guard.SLOWEST", 1 << 20)
    head = b"POST /v1/session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.settings.port), timeout=0.1) as connection:
        connection.sendall(head)
        end, answer = time.monotonic() + 10, b""
        while not answer:
            assert time.monotonic() < end
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(100)
        assert answer.startswith(b"HTTP/1.1 504")
