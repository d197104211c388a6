"""The certificates of `skerry up --tls`: believed by who trusts their authority, whatever happened to their files."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from skerry.core.errors import Corrupted, InvalidArgument
from skerry.server.run import certificates
from skerry.server.run.certificates import Certificates, local_certificates
from tests.server.conftest import Running


def test_a_local_authority_makes_certificates_that_clients_verify(tmp_path: Path) -> None:
    made = local_certificates(tmp_path / "tls", frozenset({"skerry.example", "10.1.2.3"}))
    again = local_certificates(tmp_path / "tls", frozenset({"skerry.example", "10.1.2.3"}))
    assert made.cert.read_bytes() == again.cert.read_bytes()
    assert made.key.stat().st_mode & 0o077 == 0 and (tmp_path / "tls/ca.key").stat().st_mode & 0o077 == 0
    running = Running(tmp_path / "home", tls_cert=str(made.cert), tls_key=str(made.key))
    trusted = ssl.create_default_context(cafile=str(made.ca))
    with httpx2.Client(base_url=running.url, verify=trusted) as client:
        assert client.get("/health").json() == {"status": "ok"}
        name = running.url.replace("127.0.0.1", "localhost")
        assert client.get(f"{name}/health").status_code == 200
    with httpx2.Client(base_url=running.url) as stranger, pytest.raises(httpx2.ConnectError, match="CERTIFICATE"):
        stranger.get("/health")
    running.stop()
    before = made.cert.read_bytes()
    renamed = local_certificates(tmp_path / "tls", frozenset({"other.example"}))
    assert renamed.cert.read_bytes() != before and renamed.fingerprint == made.fingerprint


def test_a_certificate_that_is_renewed_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates, "LOOK", 0.02)
    first, second = (local_certificates(tmp_path / name, frozenset()) for name in ("tls", "other"))
    running = Running(tmp_path / "home", tls_cert=str(first.cert), tls_key=str(first.key))

    def believed(made: Certificates) -> bool:
        try:
            trusted = ssl.create_default_context(cafile=str(made.ca))
            return httpx2.get(f"{running.url}/health", verify=trusted).status_code == 200
        except httpx2.ConnectError:
            return False

    def eventually(done: Callable[[], bool]) -> bool:
        until = time.monotonic() + 20
        while not done() and time.monotonic() < until:
            time.sleep(0.02)
        return done()

    assert believed(first) and not believed(second)
    shutil.copy(second.key, first.key)
    assert eventually(lambda: "keeping the old one" in caplog.text)
    assert believed(first)  # as long as the two do not fit
    shutil.copy(second.cert, first.cert)
    assert eventually(lambda: believed(second)) and not believed(first)
    running.stop()


def works(directory: Path) -> bool:
    """Whether a server with these files is believed by who trusts the authority that lies beside them."""
    made = local_certificates(directory, frozenset({"skerry.example"}))
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(made.cert, made.key)
    here, there = socket.socketpair()
    with here, there:
        answer = threading.Thread(target=lambda: ours.wrap_socket(there, server_side=True).close())
        answer.start()
        try:
            trusted = ssl.create_default_context(cafile=str(made.ca))
            trusted.wrap_socket(here, server_hostname="skerry.example").close()
        finally:
            answer.join()
    return True


def test_certificates_survive_a_kill_between_two_files(tmp_path: Path) -> None:
    assert works(tmp_path / "tls")
    local_certificates(tmp_path / "other", frozenset({"skerry.example"}))
    shutil.copy(tmp_path / "other/server.key", tmp_path / "tls/server.key")  # written first, then it was killed
    assert works(tmp_path / "tls")
    shutil.copy(tmp_path / "other/ca.key", tmp_path / "tls/ca.key")
    assert works(tmp_path / "tls")
    (tmp_path / "tls/server.pem").write_bytes(b"")  # the machine lost its power
    assert works(tmp_path / "tls")


def test_a_new_authority_has_a_new_certificate(tmp_path: Path) -> None:
    assert works(tmp_path / "tls")
    for name in ("ca.pem", "ca.key"):
        (tmp_path / "tls" / name).unlink()
    assert works(tmp_path / "tls")


def test_a_damaged_authority_is_refused_and_never_replaced_unasked(tmp_path: Path) -> None:
    local_certificates(tmp_path, frozenset())
    (tmp_path / "ca.pem").write_bytes(b"")
    with pytest.raises(Corrupted, match=r"ca\.pem"):
        local_certificates(tmp_path, frozenset())
    assert (tmp_path / "ca.pem").read_bytes() == b""


def test_a_name_that_no_certificate_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="münchen"):
        local_certificates(tmp_path, frozenset({"münchen.example"}))
