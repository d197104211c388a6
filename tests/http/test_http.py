"""The low-level client: typed errors, retries that make nothing twice, and keys that stay where they belong."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from skerry.core.errors import (
    CommandFailed,
    ConnectionLost,
    ExecTimeout,
    InternalError,
    InvalidArgument,
    SandboxNotFound,
    SkerryError,
    Unauthenticated,
    Unsupported,
)
from skerry.core.json import dump_json, from_plain, load_json
from skerry.core.models import BuiltTemplate, ExecResult, ExecStatus, Resources, SandboxSpec, Script, VolumeMount
from skerry.core.problems import to_problem
from skerry.functional import create_client
from skerry.http import AsyncClient, Client, Login, Request, find_login, forget_login, load_login, save_login
from skerry.http.api import _exec
from skerry.http.exchange import failure, idempotent

RESULT = ExecResult(
    command="false",
    exit_code=1,
    stdout_bytes=b"\xff\0",
    stderr_bytes=b"",
    duration=0.1,
    pid=7,
    status=ExecStatus.EXITED,
)


@contextmanager
def answering(*answers: tuple[int, str, bytes] | None) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers, one a request; None: it closes the connection instead."""
    left, seen = list(answers), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            self.rfile.read(size)
            seen.append(f"{self.command} {self.path} {self.headers.get('Idempotency-Key', '')}".strip())
            answer = left.pop(0)
            if answer is None:
                self.close_connection = True
                return
            status, kind, body = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "error",
    [
        SandboxNotFound("gone"),
        Unsupported("no", option="gpu", providers=("modal",)),
        CommandFailed("false exited with 1", RESULT),
        ExecTimeout("too long", RESULT),
        InvalidArgument("what", hint="do this"),
    ],
)
def test_an_error_arrives_as_the_very_same(error: SkerryError) -> None:
    body = dump_json(to_problem(error))
    with answering((404, "application/problem+json", body)) as (url, _), Client(Login(url=url)) as client:
        with pytest.raises(type(error)) as raised:
            client.send(Request(method="GET", path="/v1/x"))
        assert type(raised.value) is type(error)
        assert vars(raised.value).items() >= {"message": error.message}.items()
        for name in ("option", "providers", "result", "hint", "retryable"):
            assert getattr(raised.value, name, None) == getattr(error, name, None)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"code": 5}', b'{"code": "NO_SUCH", "detail": "x"}', b"\xff" * 9]
)
def test_nonsense_for_an_error_is_an_error_still(body: bytes) -> None:
    assert isinstance(failure(502, "application/json", body), SkerryError)
    assert isinstance(failure(502, "text/html", body), InternalError)


def test_what_may_be_repeated_is_and_what_may_not_is_not() -> None:
    good = (200, "application/json", b"[1]")
    with answering(None, good) as (url, seen), Client(Login(url=url)) as client:
        assert client.send(Request(method="GET", path="/v1/x")) == [1]
        assert len(seen) == 2
    with answering(None, good) as (url, seen), Client(Login(url=url)) as client:
        with pytest.raises(ConnectionLost):
            client.send(Request(method="POST", path="/v1/x", json={}))
        assert len(seen) == 1
    with answering(None, good) as (url, seen), Client(Login(url=url)) as client:
        assert client.send(Request(method="POST", path="/v1/sandboxes", json={}, headers=idempotent())) == [1]
        assert len(seen) == 2 and len(set(seen)) == 1, "the same key for both"
    with answering(None, good) as (url, seen), Client(Login(url=url)) as client:
        with pytest.raises(ConnectionLost):  # where the server does not look at keys it would run twice
            client.send(Request(method="POST", path="/v1/sandboxes/sb-1/exec", json={}, headers=idempotent()))
        assert len(seen) == 1


def test_what_is_removed_by_an_attempt_whose_answer_is_lost_is_removed() -> None:
    gone = (404, "application/problem+json", dump_json(to_problem(SandboxNotFound("gone"))))
    with answering(None, gone) as (url, seen), Client(Login(url=url)) as client:
        assert client.send(Request(method="DELETE", path="/v1/x")) is None
        assert len(seen) == 2
    with answering(gone) as (url, _), Client(Login(url=url)) as client, pytest.raises(SandboxNotFound):
        client.send(Request(method="DELETE", path="/v1/x"))


def test_a_command_may_take_as_long_as_it_takes() -> None:
    assert _exec("sb-1", "sleep 3600", {}).timeout is None


@pytest.mark.anyio
async def test_the_async_client_does_the_same() -> None:
    with answering(
        None,
        (200, "application/json", b"{}"),
        (403, "application/problem+json", dump_json(to_problem(SandboxNotFound("x")))),
    ) as (url, seen):
        async with AsyncClient(Login(url=url)) as client:
            assert await client.send(Request(method="GET", path="/v1/x")) == {}
            with pytest.raises(SandboxNotFound):
                async with client.stream(Request(method="GET", path="/v1/x")):
                    raise AssertionError
        assert len(seen) == 3


def test_a_server_that_is_not_there_is_a_lost_connection() -> None:
    with Client(Login(url="http://127.0.0.1:9")) as client, pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:9"):
        client.send(Request(method="GET", path="/v1/x"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SKERRY_URL", "SKERRY_API_KEY", "SKERRY_PROJECT", "SKERRY_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "deep" / "login.json"
    monkeypatch.setenv("SKERRY_LOGIN", str(path))
    return path


def test_a_login_is_stored_for_its_owner_alone(place: Path) -> None:
    assert load_login() is None
    assert save_login(Login(url="http://one", key="sk_1")) == place
    assert place.stat().st_mode & 0o777 == 0o600
    assert load_login() == find_login() == Login(url="http://one", key="sk_1")
    assert "sk_1" not in repr(load_login())
    place.chmod(0o644)
    with pytest.raises(InvalidArgument, match="others"):
        load_login()
    assert forget_login() is True
    assert forget_login() is False
    with pytest.raises(Unauthenticated):
        find_login()


def test_a_stored_key_is_for_its_server_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(Login(url="http://one", key="sk_1"))
    assert find_login("http://one/").key == "sk_1"
    assert find_login("http://two").key is None
    monkeypatch.setenv("SKERRY_URL", "http://three")
    assert (find_login().url, find_login().key) == ("http://three", None)
    monkeypatch.setenv("SKERRY_API_KEY", "sk_3")
    assert find_login().key == "sk_3"
    assert find_login(key="sk_4").key == "sk_4"


@pytest.mark.parametrize("key", ["sk_1_secret\n", "sk_1_s\u00e9cret", "sk_1_\0secret"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_told(key: str, place: Path) -> None:
    with pytest.raises(InvalidArgument) as refused, Client(find_login("http://127.0.0.1:9", key)) as client:
        client.send(Request(method="GET", path="/v1/x"))
    assert "cret" not in f"{refused.value!r} {refused.value.hint}"
    with pytest.raises(InvalidArgument, match="project"):
        find_login("http://127.0.0.1:9", project="mein Projekt für alles")


def test_a_key_or_a_target_is_never_for_this_machine(place: Path) -> None:
    for options in ({"api_key": "sk_1"}, {"target": "demo"}):
        with pytest.raises(Unauthenticated, match="no server"):
            create_client(**options)
    assert create_client().provider.name == "local"


@pytest.mark.parametrize(
    "url", ["", "host", "ftp://x", "http://", "http://u:p@host", "http://x/?q=1", "http://x:99999", "http://[x"]
)
def test_a_url_that_is_none_is_refused(url: str, place: Path) -> None:
    with pytest.raises((InvalidArgument, Unauthenticated)):
        find_login(url)


SPEC = SandboxSpec(
    name="x",
    env={"A": os.fsdecode(b"\xff\xfe")},
    resources=Resources(cpu=1.5, memory=10**12),
    volumes=(VolumeMount(name="v", path="/v"),),
)


def test_models_go_over_and_come_back_as_they_were() -> None:
    assert from_plain(SandboxSpec, load_json(dump_json(SPEC))) == SPEC
    built = BuiltTemplate(name="a", id="b", post_create=(Script("x"),), ports=(1,), created_at=1.5)
    assert from_plain(BuiltTemplate, load_json(dump_json(built))) == built
    assert from_plain(ExecResult, load_json(dump_json(RESULT))) == RESULT


@pytest.mark.parametrize(
    "text",
    [
        b"[]", b"1", b"null", b"", b"{", b'{"x": 1}', b'{"name": 1}', b'{"timeout": "1"}', b'{"timeout": NaN}', b'{"timeout": 1e999}',
        b'{"env": {"A": 1}}', b'{"env": []}', b'{"volumes": [{"name": "v"}]}', b'{"volumes": {}}', b'{"leased": 1}', b'{"network": "x"}',
        b'{"resources": {"pids": 1.5}}', b'{"resources": {"memory": 99999999999999999999}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        from_plain(SandboxSpec, load_json(text))


def test_a_later_server_may_say_more() -> None:
    assert from_plain(SandboxSpec, {"name": "x", "later": 1}, strict=False).name == "x"
