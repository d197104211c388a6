"""Requests that last: they end when whoever made them may no longer do so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from skerry.server.access.permissions import Role
from tests.server.conftest import Running


@pytest.fixture
def guest(server: Running, owner: httpx2.Client) -> Iterator[httpx2.Client]:
    """A reader of the owner's project, who is put out after a second."""
    project = server.project("owner")
    server.share(project, "guest", Role.READ)

    def put_out() -> None:
        server.call(lambda: server.context.store.projects.set_member(project.id, server.user("guest").id, None))

    soon = threading.Timer(1.0, put_out)
    soon.start()
    with server.client_of("guest") as client:
        yield client
    soon.join()


def test_who_is_put_out_sees_no_more_changes_of_files(owner: httpx2.Client, guest: httpx2.Client, box: str) -> None:
    seen, began = b"", time.monotonic()

    def follow() -> None:
        nonlocal seen
        with guest.stream("GET", f"/v1/sandboxes/{box}/watch", params={"path": "/tmp"}) as answer:
            for part in answer.iter_raw():
                seen += part
                assert time.monotonic() - began < 15
                owner.put(f"/v1/sandboxes/{box}/files", params={"path": "/tmp/news"}, content=b"news")

    with pytest.raises(httpx2.RemoteProtocolError):  # an answer that was begun can only be cut
        follow()
    assert b"ready" in seen


@pytest.mark.parametrize("kind", ["processes", "terminals"])
def test_who_is_put_out_does_not_wait_for_a_result(
    owner: httpx2.Client, guest: httpx2.Client, box: str, kind: str
) -> None:
    made = owner.post(f"/v1/sandboxes/{box}/{kind}", json={"command": "sleep 20"}).raise_for_status().json()["id"]
    answer = guest.get(f"/v1/sandboxes/{box}/{kind}/{made}/wait", params={"timeout": 15})
    assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")
    owner.delete(f"/v1/sandboxes/{box}/{kind}/{made}")
