"""Files and directories over HTTP: any bytes, any size, whole or in parts, never half."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from tests.server.conftest import Running


@pytest.fixture(scope="module")
def files(box: str) -> str:
    return f"/v1/sandboxes/{box}/files"


def _run(owner: httpx2.Client, files: str, command: str) -> str:
    done = owner.post(f"{files.removesuffix('/files')}/exec", json={"command": command, "check": True})
    assert done.status_code == 200, done.text
    return str(done.json()["stdout"])


def test_bytes_go_in_and_come_out_as_they_were(owner: httpx2.Client, files: str) -> None:
    data = os.urandom(300_000)
    made = owner.put(files, params={"path": "a/b/c.bin", "mode": "600"}, content=data)
    assert made.status_code == 200, made.text
    assert (made.json()["size"], made.json()["mode"], made.json()["type"]) == (len(data), 0o600, "file")
    back = owner.get(files, params={"path": "a/b/c.bin"})
    assert back.content == data
    assert back.headers["etag"] == f'"{made.json()["etag"]}"'
    assert back.headers["content-disposition"] == "attachment; filename*=UTF-8''c.bin"
    head = owner.head(files, params={"path": "a/b/c.bin"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(data)), b"")
    assert owner.get(f"{files}/hash", params={"path": "a/b/c.bin"}).json()["sha256"] == hashlib.sha256(data).hexdigest()


def test_an_empty_file_is_a_file(owner: httpx2.Client, files: str) -> None:
    assert owner.put(files, params={"path": "empty"}, content=b"").json()["size"] == 0
    assert owner.get(files, params={"path": "empty"}).content == b""
    refused = owner.get(files, params={"path": "empty"}, headers={"range": "bytes=0-"})
    assert (refused.status_code, refused.headers["content-range"]) == (416, "bytes */0")


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("0-0", 0, 0), ("10-19", 10, 19), ("90-", 90, 99), ("-5", 95, 99), ("50-5000", 50, 99), ("-5000", 0, 99)],
)
def test_a_range_gives_exactly_that_part(owner: httpx2.Client, files: str, asked: str, first: int, last: int) -> None:
    data = bytes(range(100))
    owner.put(files, params={"path": "part"}, content=data)
    part = owner.get(files, params={"path": "part"}, headers={"range": f"bytes={asked}"})
    assert (part.status_code, part.content) == (206, data[first : last + 1])
    assert part.headers["content-range"] == f"bytes {first}-{last}/100"


def test_ranges_that_make_no_sense_give_all_or_are_refused(owner: httpx2.Client, files: str) -> None:
    owner.put(files, params={"path": "part"}, content=b"0123456789")
    for asked in ("bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=-", f"bytes={'9' * 40}-"):
        whole = owner.get(files, params={"path": "part"}, headers={"range": asked})
        assert (whole.status_code, whole.content) == (200, b"0123456789"), asked
    for asked in ("bytes=10-", "bytes=100-200", "bytes=-0"):
        refused = owner.get(files, params={"path": "part"}, headers={"range": asked})
        assert (refused.status_code, refused.json()["code"]) == (416, "INVALID_ARGUMENT"), asked


def test_etags_save_reading_and_catch_concurrent_writes(owner: httpx2.Client, files: str) -> None:
    at = {"path": "edited"}
    etag = f'"{owner.put(files, params=at, content=b"one").json()["etag"]}"'
    same = owner.get(files, params=at, headers={"if-none-match": etag})
    assert (same.status_code, same.content) == (304, b"")
    assert owner.get(files, params=at, headers={"if-match": '"other"'}).status_code == 412
    assert owner.get(files, params=at, headers={"range": "bytes=0-0", "if-range": '"other"'}).status_code == 200
    second = owner.put(files, params=at, content=b"two", headers={"if-match": etag})
    assert second.status_code == 200
    stale = owner.put(files, params=at, content=b"three", headers={"if-match": etag})
    assert (stale.status_code, stale.json()["code"]) == (412, "CONFLICT")
    assert owner.put(files, params=at, content=b"x", headers={"if-none-match": "*"}).status_code == 412
    assert owner.put(files, params={"path": "nowhere"}, content=b"x", headers={"if-match": "*"}).status_code == 412
    assert owner.get(files, params=at).content == b"two"
    assert owner.put(files, params={"path": "fresh"}, content=b"x", headers={"if-none-match": "*"}).status_code == 200


def test_what_would_lose_bytes_unasked_is_refused(owner: httpx2.Client, files: str) -> None:
    at = {"path": "whole"}
    etag = owner.put(files, params=at, content=b"whole").json()["etag"]
    refused: list[tuple[str, dict[str, str], int]] = [
        ("PUT", {"content-range": "bytes 5-7/8"}, 400),  # as `curl -C - -T` sends it: it would be all of the file
        ("PUT", {"if-unmodified-since": "Mon, 16 Nov 2026 20:00:00 GMT"}, 400),
        ("PUT", {"if-match": f'W/"{etag}"'}, 412),
        ("PUT", {"if-match": '"*"'}, 412),
        ("DELETE", {"if-match": '"other"'}, 400),
    ]
    for method, headers, status in refused:
        answer = owner.request(method, files, params=at, content=b"xyz", headers=headers)
        assert answer.status_code == status, (method, headers, answer.text)
    assert owner.get(files, params=at).content == b"whole"
    for headers in ({"if-match": '""'}, {"if-match": ""}):  # of no file, so not of one that is missing either
        assert owner.put(files, params={"path": "lost-etag"}, content=b"x", headers=headers).status_code == 412
    assert owner.get(files, params={"path": "lost-etag"}).status_code == 404


def test_a_weak_etag_saves_reading_and_joins_no_parts(owner: httpx2.Client, files: str) -> None:
    at = {"path": "weak"}
    weak = f'W/"{owner.put(files, params=at, content=b"0123").json()["etag"]}"'
    assert owner.get(files, params=at, headers={"if-none-match": weak}).status_code == 304
    assert owner.get(files, params=at, headers={"if-match": weak}).status_code == 412
    assert owner.get(files, params=at, headers={"range": "bytes=1-2", "if-range": weak}).content == b"0123"
    assert owner.get(files, params=at, headers={"if-none-match": '"*"'}).status_code == 200


def test_a_head_is_of_the_whole_file(owner: httpx2.Client, files: str) -> None:
    owner.put(files, params={"path": "headed"}, content=b"0123456789")
    for asked in ("bytes=2-3", "bytes=99-"):
        head = owner.head(files, params={"path": "headed"}, headers={"range": asked})
        assert (head.status_code, head.headers["content-length"]) == (200, "10")


def test_an_append_that_is_repeated_under_its_etag_adds_nothing_twice(owner: httpx2.Client, files: str) -> None:
    at = {"path": "log"}
    headers = {"if-match": f'"{owner.put(files, params=at, content=b"one ").json()["etag"]}"'}
    first = owner.post(f"{files}/append", params=at, content=b"two ", headers=headers)
    assert first.status_code == 200, first.text
    again = owner.post(f"{files}/append", params=at, content=b"two ", headers=headers)
    assert (again.status_code, again.json()["code"]) == (412, "CONFLICT")
    headers = {"if-match": first.headers["etag"]}
    assert owner.post(f"{files}/append", params=at, content=b"three", headers=headers).status_code == 200
    assert owner.get(files, params=at).content == b"one two three"


def test_names_of_any_bytes_are_the_very_names(owner: httpx2.Client, files: str) -> None:
    for raw in (b"caf\xc3\xa9", b"\xff\xfe bytes", "日本".encode(), b"a&b=c+d#e?f%41", b"new\nline"):
        name = quote(b"odd/" + raw, safe="")
        assert owner.put(f"{files}?path={name}", content=raw).status_code == 200
        assert owner.get(f"{files}?path={name}").content == raw
    listed = owner.get(f"{files}/list", params={"path": "odd"}).json()["items"]
    assert {item["path"].encode("utf-8", "surrogateescape") for item in listed} >= {b"\xff\xfe bytes", b"new\nline"}
    odd = next(item["path"] for item in listed if "bytes" in item["path"])
    moved = owner.post(
        f"{files}/rename",
        content=b'{"path": "odd/%s", "target": "odd/plain"}' % odd.encode("ascii", "backslashreplace"),
        headers={"content-type": "application/json"},
    )
    assert moved.status_code == 200, moved.text


def test_everything_else_that_can_be_done_with_files(owner: httpx2.Client, files: str) -> None:
    owner.put(files, params={"path": "w/one.txt"}, content=b"alpha\nbeta\n")
    assert owner.post(f"{files}/append", params={"path": "w/one.txt"}, content=b"gamma\n").json()["size"] == 17
    assert owner.post(f"{files}/mkdir", json={"path": "w/d", "mode": "750"}).json()["mode"] == 0o750
    assert owner.post(f"{files}/copy", json={"path": "w/one.txt", "target": "w/d/two.txt"}).status_code == 200
    assert owner.post(f"{files}/chmod", json={"path": "w/d/two.txt", "mode": 0o646}).json()["mode"] == 0o646
    chowned = owner.post(f"{files}/chown", json={"path": "w/d/two.txt", "owner": "root", "user": "root"})
    assert chowned.json()["owner"] == "root"
    assert owner.post(f"{files}/symlink", json={"path": "w/l", "target": "d"}).json()["target"] == "d"
    assert owner.get(f"{files}/stat", params={"path": "w/l"}).json()["type"] == "dir"
    assert owner.get(f"{files}/stat", params={"path": "w/l", "follow": False}).json()["type"] == "link"
    names = [item["path"] for item in owner.get(f"{files}/list", params={"path": "w", "depth": 3}).json()["items"]]
    assert names == ["d", "d/two.txt", "l", "one.txt"]
    paged, cursor = [], None
    while True:
        params = {"path": "w", "depth": 3, "limit": 1} | ({"cursor": cursor} if cursor else {})
        page = owner.get(f"{files}/list", params=params).json()
        paged += [item["path"] for item in page["items"]]
        if (cursor := page["cursor"]) is None:
            break
    assert paged == names
    found = owner.get(f"{files}/glob", params={"pattern": "**/*.txt", "path": "w"}).json()["items"]
    assert [item["path"] for item in found] == ["d/two.txt", "one.txt"]
    for regex, pattern in ((True, "^b.ta$"), (False, "beta")):
        result = owner.post(f"{files}/search", json={"pattern": pattern, "path": "w", "regex": regex}).json()
        assert "matches" in result, result
        assert [(match["path"], match["line"]) for match in result["matches"]] == [("w/d/two.txt", 2), ("w/one.txt", 2)]
    done = owner.post(f"{files}/replace", json={"old": "al(ph)a", "new": r"\1", "path": "w/one.txt", "regex": True})
    assert (done.json()["files"], done.json()["count"]) == ({"w/one.txt": 1}, 1)
    assert owner.post(f"{files}/replace", json={"old": "ph", "new": "PH", "path": "w/*.txt"}).json()["count"] == 1
    assert owner.get(files, params={"path": "w/one.txt"}).content == b"PH\nbeta\ngamma\n"
    kept = owner.delete(files, params={"path": "w"})
    assert (kept.status_code, kept.json()["code"]) == (409, "NOT_EMPTY")
    assert owner.delete(files, params={"path": "w", "recursive": True}).json()["removed"] == 5


def test_each_kind_of_mistake_has_its_error(owner: httpx2.Client, files: str) -> None:
    owner.post(f"{files}/mkdir", json={"path": "m/d"})
    owner.put(files, params={"path": "m/f"}, content=b"x")
    _run(owner, files, "mkfifo m/p; echo x > m/secret; chmod 000 m/secret")
    cases = [
        (owner.get(files, params={"path": "m/none"}), 404, "FILE_NOT_FOUND"),
        (owner.get(files, params={"path": "m/d"}), 409, "IS_A_DIRECTORY"),
        (owner.get(files, params={"path": "m/p"}), 409, "NOT_A_FILE"),
        (owner.get(files, params={"path": "m/f/below"}), 409, "NOT_A_DIRECTORY"),
        (owner.get(files, params={"path": "m/secret"}), 403, "PERMISSION_DENIED"),
        (owner.get(files, params={"path": ""}), 400, "INVALID_ARGUMENT"),
        (owner.get(files, params={"path": "a\0b"}), 400, "INVALID_ARGUMENT"),
        (owner.get(files), 400, "INVALID_ARGUMENT"),
        (owner.put(files, params={"path": "m/d"}, content=b"x"), 409, "IS_A_DIRECTORY"),
        (owner.put(files, params={"path": "m/f", "overwrite": False}, content=b"x"), 409, "ALREADY_EXISTS"),
        (owner.put(files, params={"path": "m/f", "mode": "999"}, content=b"x"), 400, "INVALID_ARGUMENT"),
        (owner.post(f"{files}/mkdir", json={"path": "m/d", "parents": False}), 409, "ALREADY_EXISTS"),
        (owner.post(f"{files}/chmod", json={"path": "m/f", "mode": -1}), 400, "INVALID_ARGUMENT"),
        (owner.post(f"{files}/search", json={"pattern": "("}), 400, "INVALID_ARGUMENT"),
        (owner.post(f"{files}/mkdir", json={"path": "x", "more": 1}), 400, "INVALID_ARGUMENT"),
        (owner.post(f"{files}/mkdir", content=b"{"), 400, "INVALID_ARGUMENT"),
    ]
    for number, (answer, status, code) in enumerate(cases):
        assert (answer.status_code, answer.json()["code"]) == (status, code), (number, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


def test_paths_never_lead_out_of_the_sandbox(owner: httpx2.Client, files: str, tmp_path: Path) -> None:
    secret = tmp_path / "host-secret"
    secret.write_text("of the host")
    _run(owner, files, f"ln -sfn {secret} out; ln -sfn / root")
    for path in (str(secret), f"../../../../..{secret}", "out", f"root{secret}", "root/proc/1/root/etc/shadow"):
        answer = owner.get(files, params={"path": path})
        assert answer.status_code in (403, 404) and "of the host" not in answer.text


@contextmanager
def _nobody_waits(server: Running) -> Iterator[None]:
    """Others are served all the while, and at once."""
    worst, done = [0.0], threading.Event()

    def watch() -> None:
        with server.client_of(None) as other:
            while not done.wait(0.1):
                began = time.monotonic()
                assert other.get("/health").status_code == 200
                worst.append(time.monotonic() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert max(worst) < 2.0, "others had to wait for it"


def test_a_regular_expression_that_never_ends_is_ended(
    owner: httpx2.Client, server: Running, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.server.web.patterns.LIMIT", 3.0)
    owner.put(files, params={"path": "trap"}, content=b"a" * 200 + b"!\n")
    with _nobody_waits(server):
        answer = owner.post(f"{files}/search", json={"pattern": "(a+)+$", "path": "trap"})
    assert (answer.status_code, answer.json()["code"]) == (504, "TIMEOUT")


def test_nobody_waits_while_somebody_looks_for_a_plain_text(owner: httpx2.Client, server: Running, files: str) -> None:
    _run(owner, files, "head -c 6000000 /dev/zero | tr '\\0' '\\n' > lines")
    body = {"pattern": "x", "path": "lines", "regex": False}
    with _nobody_waits(server):
        found = owner.post(f"{files}/search", json=body)
    assert (found.status_code, found.json()["matches"]) == (200, [])


def test_nobody_waits_while_somebody_uses_a_pattern_with_a_thousand_parts(
    owner: httpx2.Client, server: Running, files: str
) -> None:
    pattern = "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}" + "*[a-z]" * 120
    with _nobody_waits(server):
        found = owner.get(f"{files}/glob", params={"pattern": pattern})
    assert (found.status_code, found.json().get("items", [])) in ((200, []), (504, [])), found.text


def test_a_replacement_that_no_memory_could_hold_is_refused(owner: httpx2.Client, server: Running, files: str) -> None:
    _run(owner, files, "head -c 3000000 /dev/zero | tr '\\0' a > bomb")
    with _nobody_waits(server):
        answer = owner.post(f"{files}/replace", json={"old": "a", "new": "b" * 900, "path": "bomb"})
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert _run(owner, files, "tr -d a < bomb; stat -c %s bomb") == "3000000\n"


def _memory(server: Running) -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_large_file_passes_in_constant_memory_both_ways(owner: httpx2.Client, server: Running, files: str) -> None:
    size = int(os.environ.get("SKERRY_TEST_BYTES", 200 << 20))
    piece = os.urandom(1 << 20)

    def pieces() -> Iterator[bytes]:
        for _ in range(size >> 20):
            yield piece

    expected = hashlib.sha256()
    for _ in range(size >> 20):
        expected.update(piece)
    before = _memory(server)
    owner.put(files, params={"path": "large"}, content=pieces(), timeout=600).raise_for_status()
    got, most = hashlib.sha256(), 0
    with owner.stream("GET", files, params={"path": "large"}, timeout=600) as answer:
        for part in answer.iter_raw(1 << 20):
            got.update(part)
            most = max(most, _memory(server))
    assert got.digest() == expected.digest()
    assert most - before < 64 << 20
    owner.delete(files, params={"path": "large"})


def test_an_upload_that_breaks_off_leaves_what_was_there(owner: httpx2.Client, server: Running, files: str) -> None:
    owner.put(files, params={"path": "kept"}, content=b"old")
    with _connected(server, owner, "PUT", f"{files}?path=kept", ["content-length: 1000000"]) as half:
        half.sendall(b"x" * 1000)
    time.sleep(0.5)
    assert owner.get(files, params={"path": "kept"}).content == b"old"
    assert ".skerry" not in _run(owner, files, "ls -a")


def test_a_client_that_sends_nothing_is_given_up(
    owner: httpx2.Client, server: Running, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.server.web.guard.BODY_PATIENCE", 1.0)
    with _connected(server, owner, "PUT", f"{files}?path=slow", ["content-length: 1000000"]) as half:
        half.sendall(b"x" * 1000)
        half.settimeout(20)
        assert half.recv(100).startswith(b"HTTP/1.1 504")


def test_a_client_that_reads_nothing_is_given_up(
    owner: httpx2.Client, server: Running, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.server.web.responses.STALLED", 1.0)
    _run(owner, files, "head -c 50000000 /dev/zero > zeros")
    with _connected(server, owner, "GET", f"{files}?path=zeros", []) as half:
        time.sleep(4)
        half.settimeout(20)
        got = 0
        while data := half.recv(1 << 20):
            got += len(data)
    assert got < 50_000_000, "the server has waited for a client that took nothing"


def test_a_file_that_shrinks_while_it_is_read_does_not_look_complete(
    owner: httpx2.Client, server: Running, files: str, caplog: pytest.LogCaptureFixture
) -> None:
    _run(owner, files, "head -c 50000000 /dev/zero > shrinks")
    with _connected(server, owner, "GET", f"{files}?path=shrinks", []) as half:
        assert half.recv(1000).startswith(b"HTTP/1.1 200")
        _run(owner, files, "truncate -s 0 shrinks")
        got = 0
        while data := half.recv(1 << 20):
            got += len(data)
    assert got < 50_000_000
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "skerry.server"]
    assert [level for level, text in said] == ["WARNING"] and "cut short" in said[0][1], said


def _connected(server: Running, owner: httpx2.Client, method: str, target: str, headers: list[str]) -> socket.socket:
    place = urlsplit(server.url)
    made = socket.create_connection((place.hostname, place.port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    lines = [f"{method} {target} HTTP/1.1", f"host: {place.netloc}", f"authorization: {owner.headers['authorization']}"]
    made.sendall("\r\n".join([*lines, *headers, "", ""]).encode())
    return made


def _tar(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_a_directory_goes_in_and_comes_out_as_a_tar(owner: httpx2.Client, files: str) -> None:
    at = files.replace("/files", "/directories")
    sent = owner.put(at, params={"path": "tree"}, content=_tar(("x/a.txt", b"A"), ("x/b.txt", b"B" * 100_000)))
    assert (sent.status_code, sent.json()["files"], sent.json()["directories"]) == (200, 2, 2), sent.text
    back = owner.get(at, params={"path": "tree"})
    assert back.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(back.content)) as archive:
        assert sorted(archive.getnames()) == [".", "x", "x/a.txt", "x/b.txt"]
        content = archive.extractfile("x/b.txt")
        assert content is not None and content.read() == b"B" * 100_000
    owner.put(at, params={"path": "tree", "merge": True}, content=_tar(("x/c.txt", b"C"))).raise_for_status()
    assert _run(owner, files, "ls tree/x").split() == ["a.txt", "b.txt", "c.txt"]
    owner.put(at, params={"path": "tree"}, content=_tar(("only", b"1"))).raise_for_status()
    assert _run(owner, files, "ls tree").split() == ["only"]
    left = owner.get(at, params={"path": "tree", "exclude": "only"})
    with tarfile.open(fileobj=io.BytesIO(left.content)) as archive:
        assert archive.getnames() == ["."]


def test_hostile_and_broken_tars_are_refused_and_leave_nothing(owner: httpx2.Client, files: str) -> None:
    at = files.replace("/files", "/directories")
    good = _tar(("a", b"x" * 5000))
    for bad in (_tar(("../evil", b"x")), _tar(("/tmp/evil", b"x")), good[:3000], good[:-10240], b"no tar at all" * 100):
        refused = owner.put(at, params={"path": "new"}, content=bad)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT"), refused.text
    assert owner.get(f"{files}/stat", params={"path": "new"}).status_code == 404
    assert owner.get(at, params={"path": "nowhere"}).status_code == 404
