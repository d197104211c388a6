"""port: what listens, and a way to it."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from tests.cli.conftest import Skerry

SERVER = ("python3", "-m", "http.server", "--bind", "127.0.0.1", "8000")


def test_port_lists_and_forwards_until_ctrl_c(skerry: Skerry, box: str) -> None:
    empty = skerry("port", box)
    assert (empty.code, empty.out, empty.err) == (0, b"", "no listening ports\n")
    skerry("exec", "--detach", box, "--", *SERVER)
    started = skerry.start("port", box, "8000", "--wait", "30")
    assert started.stdout is not None
    url = started.stdout.readline().decode().strip()
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert b"Directory listing" in answer.read()
    header, row = skerry("port", box).text.splitlines()
    assert (header.split(), row.split()) == (["PORT", "ADDRESS", "UID"], ["8000", "127.0.0.1", "1000"])
    assert skerry("port", box, "-o", "json").json == [{"port": 8000, "address": "127.0.0.1", "uid": 1000}]
    taken = skerry("port", box, "8000", url.rsplit(":", 1)[1], "-o", "json")
    assert (taken.code, taken.error["code"]) == (1, "CONFLICT")
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=20)
    assert started.returncode == 130
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def test_port_prints_where_a_forward_leads_as_json(skerry: Skerry, box: str) -> None:
    skerry("exec", "--detach", box, "--", *SERVER)
    started = skerry.start("port", box, "8000", "--wait", "30", "-o", "json")
    assert started.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        text += started.stdout.readline().decode()
    data = json.loads(text)
    assert (data["port"], data["url"]) == (8000, f"http://127.0.0.2:{data['local_port']}")
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=20)
    assert started.returncode == 143


def test_a_closed_or_impossible_port_is_an_error(skerry: Skerry, box: str) -> None:
    closed = skerry("port", box, "8000", "-o", "json")
    assert (closed.code, closed.error["code"], closed.error["retryable"]) == (1, "PORT_CLOSED", True)
    assert "(INVALID_ARGUMENT)" in skerry("port", box, "70000").err
