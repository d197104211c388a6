"""Bad clients, wrong settings, too many requests: each is refused or survived, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from skerry import Sandbox
from skerry.core.errors import Conflict, InvalidArgument, ProviderUnavailable
from skerry.server.access.permissions import Role
from skerry.server.access.secrets import digest
from skerry.server.run import instance
from skerry.server.run.logs import JsonLines, Lines
from skerry.server.run.serve import first_link, listen
from skerry.server.settings import Settings, load_settings
from skerry.server.store import AuditEntry, Store
from skerry.server.web import guard
from tests.server.conftest import Running


def raw(server: Running, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.settings.port), timeout=20)
    connection.sendall(data)
    return connection


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that waits for nobody."""
    running = Running(tmp_path_factory.mktemp("strict"), header_timeout=0.5, shutdown_timeout=3.0)
    yield running
    running.stop()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_a_client_that_does_not_finish_its_request_is_put_out(strict: Running, sent: bytes) -> None:
    began = time.monotonic()
    with raw(strict, sent) as connection:
        assert b"408" in connection.recv(1000)
        assert connection.recv(1000) == b""
    assert 0.4 < time.monotonic() - began < 15


def test_a_slow_second_request_is_put_out_too(strict: Running) -> None:
    with raw(strict, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as connection:
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):  # its head and its body may come apart
            answer += connection.recv(4000)
        assert b"200 OK" in answer
        connection.sendall(b"GET /hea")
        assert b"408" in connection.recv(1000)


def test_a_head_without_an_end_is_refused(server: Running) -> None:
    with raw(server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n") as connection:
        told = b""
        try:
            for number in range(100):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"a" * 1000))
            told = connection.recv(1000)
        except ConnectionError:
            told = b"431"  # it has closed while we were talking
        assert b"431" in told


def test_a_body_that_is_too_large_is_refused_unread(server: Running, owner: httpx2.Client) -> None:
    said = owner.post("/v1/projects", content=b" " * (1 << 20) + b"{}", headers={"content-type": "application/json"})
    assert (said.status_code, said.json()["code"]) == (413, "TOO_LARGE")

    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    said = owner.post("/v1/projects", content=endless(), headers={"content-type": "application/json"})
    assert said.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_PATIENCE", 0.5)
    key = server.key("owner")
    head = f"POST /v1/projects HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Length: 9\r\n"
    with raw(server, f"{head}Content-Type: application/json\r\n\r\n{{".encode()) as connection:
        assert b"504" in connection.recv(4000)


def test_nothing_of_a_body_is_read_for_who_may_not_send_it(server: Running) -> None:
    head = b"POST /v1/projects HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
    with raw(server, head) as connection:
        assert b"401" in connection.recv(4000)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_requests_that_are_none_are_refused(server: Running, request_: bytes) -> None:
    with raw(server, request_) as connection:
        assert b" 400 " in connection.recv(4000)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b'"x"', b"\xff", b'{"name": 1}', b'{"name": "' + b"[" * 9000]
)
def test_nonsense_is_told_apart_from_a_fault(server: Running, owner: httpx2.Client, body: bytes) -> None:
    said = owner.post("/v1/projects", content=body, headers={"content-type": "application/json"})
    assert (said.status_code, said.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_an_unexpected_fault_is_told_without_details(
    server: Running, owner: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(server.context.store.accounts, "projects_of", broken)
    said = owner.get("/v1/projects", headers={"x-request-id": "broken-1"})
    assert (said.status_code, said.json()["code"]) == (500, "INTERNAL")
    assert said.json()["request_id"] == said.headers["x-request-id"] == "broken-1"
    assert "42" not in said.text


def test_the_server_ends_in_time_with_streams_open(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", shutdown_timeout=5.0)
    with running.client_of("owner") as client:
        headers = {"accept": "text/event-stream"}
        with client.stream("GET", "/v1/events", headers=headers) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            began = time.monotonic()
            threading.Thread(target=running.stop).start()
            assert [line for line in lines if line.startswith("event")] == []
            assert time.monotonic() - began < 4
    running._thread.join(20)
    assert not running._thread.is_alive()


def test_a_request_that_the_end_cuts_off_is_told_so_and_audited(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", shutdown_timeout=1.0)
    with running.client_of("owner") as client:
        box = client.post("/v1/sandboxes", json={}).raise_for_status().json()["id"]
        try:
            said: list[httpx2.Response] = []
            url = f"/v1/sandboxes/{box}/exec"
            asking = threading.Thread(target=lambda: said.append(client.post(url, json={"command": "sleep 60"})))
            asking.start()
            with Sandbox.get(box, provider="local") as beside:
                while "sleep" not in beside.exec("cat /proc/[0-9]*/comm").stdout:
                    time.sleep(0.05)
            running.stop()
            asking.join(20)
        finally:
            Sandbox.get(box, provider="local").destroy()
    assert (said[0].status_code, said[0].json()["code"]) == (503, "PROVIDER_UNAVAILABLE")

    async def last_entry() -> AuditEntry:
        store = Store.open(running.settings.database)
        (found,) = await store.audit.before(None, limit=1)
        await store.close()
        return found

    last = anyio.run(last_entry)
    assert (last.operation, last.outcome) == ("POST /v1/sandboxes/{sandbox}/exec", "CancelledError")


# -- settings, instance, logs


def test_who_was_removed_meanwhile_is_a_conflict_and_no_fault(tmp_path: Path) -> None:
    async def play() -> None:
        store = Store.open(tmp_path / "skerry.db")
        host, gone = await store.users.add("host", admin=True), await store.users.add("gone")
        (project,) = store.accounts.projects_of(host.id)
        await store.users.remove(gone.id)
        for late in (
            store.projects.set_member(project.id, gone.id, Role.READ),
            store.users.add_link(gone.id, b"hash", lifetime=60),
            store.users.add_session(gone.id, b"hash", lifetime=60, address=""),
        ):
            with pytest.raises(Conflict, match="removed in the meantime"):
                await late
        with pytest.raises(Conflict, match="taken by another"):
            await store.users.add("host")
        await store.close()

    anyio.run(play)


def test_settings_come_from_the_file_the_environment_and_flags_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('port = 1\nhost = "10.0.0.1"\nallowed_hosts = ["a.example"]\nrate = 5\n')
    environ = {"SKERRY_SERVER_PORT": "2", "SKERRY_SERVER_TLS": "yes", "SKERRY_SERVER_TRUSTED_PROXIES": "10.0.0.2, ::1"}
    settings, sources = load_settings(flags={"port": 3, "host": None}, environ=environ, home=tmp_path)
    assert (settings.port, settings.host, settings.tls, settings.rate) == (3, "10.0.0.1", True, 5.0)
    assert (settings.allowed_hosts, settings.trusted_proxies) == (("a.example",), ("10.0.0.2", "::1"))
    assert (sources["port"], sources["tls"], sources["host"]) == ("flag", "environment", str(tmp_path / "server.toml"))
    assert settings.url == "https://10.0.0.1:3"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1", "did you mean 'port'"),
        ("port = 'x'", "port cannot be"),
        ("port = 1.5", "port cannot be"),
        ("port = true", "port cannot be"),
        ("rate = -1", "rate cannot be"),
        ("rate = nan", "rate cannot be"),
        ("shutdown_timeout = inf", "shutdown_timeout cannot be"),
        ("port = inf", "port cannot be"),
        ("header_timeout = 0", "header_timeout cannot be"),
        ("public_url = 'skerry.example'", "like https://"),
        ("public_url = 'https://[skerry'", "like https://"),
        ("public_url = 'https://skerry.example:x'", "like https://"),
        ("public_url = 'https://skerry.example/below'", "like https://"),
        ("log_format = 'xml'", "one of text, json"),
        ("tls = 'maybe'", "tls cannot be"),
        ("port =", "cannot be read"),
        ("tls_cert = 'a'", "belong together"),
    ],
)
def test_wrong_settings_are_refused_with_a_hint(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(InvalidArgument) as refusal:
        load_settings(environ={}, home=tmp_path)
    assert told in f"{refusal.value} {refusal.value.hint}"


def test_a_home_has_one_server(tmp_path: Path) -> None:
    with instance.claimed(tmp_path):
        instance.announce(tmp_path, "http://127.0.0.1:1", None)
        found = instance.running_server(tmp_path)
        assert found is not None and found.url == "http://127.0.0.1:1"
        with pytest.raises(Conflict, match=r"127\.0\.0\.1:1"), instance.claimed(tmp_path):
            pass
    assert instance.running_server(tmp_path) is None


def test_who_looks_for_a_server_does_not_keep_one_from_starting(tmp_path: Path) -> None:
    with instance.claimed(tmp_path):
        pass
    program = f"""
from pathlib import Path
from skerry.server.run import instance
print("looks", flush=True)
while True:
    instance.running_server(Path({str(tmp_path)!r}))
"""
    looker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert looker.stdout is not None and looker.stdout.readline() == b"looks\n"
        for _ in range(1000):
            with instance.claimed(tmp_path):
                pass
    finally:
        looker.kill()
        looker.communicate()


def test_logs_are_one_line_each_whatever_somebody_sends() -> None:
    record = logging.makeLogRecord(
        {"msg": "GET %s", "args": ("/a\nb\x1b[31m",), "request_id": "x", "levelname": "INFO"}
    )
    told = json.loads(JsonLines().format(record))
    assert (told["message"], told["request_id"], told["level"]) == ("GET /a\nb\x1b[31m", "x", "info")
    line = Lines().format(record)
    assert "\n" not in line and "\x1b" not in line and "request_id=x" in line


def test_requests_are_limited_for_each_who_asks(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", rate=1.0, burst=20)
    with running.client_of("eager") as eager, running.client_of("other") as other:
        codes = [eager.get("/v1/session").status_code for _ in range(30)]
        assert codes[:20] == [200] * 20 and 429 in codes
        assert other.get("/v1/session").status_code == 200
    running.stop()


def test_an_address_and_its_port_that_are_taken_are_told(server: Running) -> None:
    with pytest.raises(ProviderUnavailable, match="cannot listen on") as refusal:
        listen(Settings(port=server.settings.port))
    assert "--port" in refusal.value.hint
    with pytest.raises(ProviderUnavailable, match="cannot listen on") as refusal:
        listen(Settings(host="192.0.2.1"))
    assert "--host" in refusal.value.hint


def test_the_key_of_this_machine_is_that_of_somebody_who_is_an_administrator(tmp_path: Path) -> None:
    running = Running(tmp_path / "home")
    try:
        store, directory = running.context.store, running.settings.directory

        def holder() -> str:
            link = running.call(lambda: first_link(running.context))
            user = running.call(lambda: store.users.use_link(digest(link.partition("#")[2])))
            key = store.accounts.check_key(instance.admin_key(directory) or "")
            assert key is not None and key.user_id == user.id
            return str(user.name)

        assert holder() == "admin"
        before = instance.admin_key(directory)
        assert holder() == "admin" and instance.admin_key(directory) == before
        running.call(lambda: store.users.add("other", admin=True))
        first = store.accounts.find_user("admin")
        running.call(lambda: store.users.change(first.id, admin=False))
        assert holder() == "other"
        running.call(lambda: store.users.change(first.id, admin=True, disabled=True))
        assert holder() == "other"
    finally:
        running.stop()


def test_one_address_does_not_take_all_connections(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", max_connections=20, max_connections_per_address=10)
    place = ("127.0.0.1", running.settings.port)
    with contextlib.ExitStack() as idle:
        opened = [idle.enter_context(socket.create_connection(place, timeout=20)) for _ in range(30)]
        refused = [connection for connection in opened[10:] if b"429" in connection.recv(1000)]
        assert len(refused) == 20
        other = idle.enter_context(socket.create_connection(place, timeout=20, source_address=("127.0.0.2", 0)))
        other.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in other.recv(4000)
    with running.client_of(None) as again:
        assert again.get("/health").status_code == 200
    running.stop()


def test_so_many_requests_of_one_user_are_under_way_at_once(tmp_path: Path) -> None:
    running = Running(tmp_path / "home", max_requests=3)
    streams = {"accept": "text/event-stream"}
    with running.client_of("eager") as eager, running.client_of("other") as other:
        with contextlib.ExitStack() as open_:
            for _ in range(3):
                open_.enter_context(eager.stream("GET", "/v1/events", headers=streams)).raise_for_status()
            refused = eager.get("/v1/session")
            assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
            assert refused.headers["retry-after"] == "1"
            assert other.get("/v1/session").status_code == 200
        end = time.monotonic() + 20
        while eager.get("/v1/session").status_code != 200:
            assert time.monotonic() < end
    running.stop()
