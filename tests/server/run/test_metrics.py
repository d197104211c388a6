"""Metrics, read by Prometheus's own parser."""

from __future__ import annotations

import time

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from skerry import Sandbox
from skerry.providers.remote import RemoteProvider
from skerry.server.run.metrics import Metrics
from tests.server.conftest import Running

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Samples:
    """All samples. Every family has its help and its type, once."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families), text
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((f"skerry_{name}", frozenset(labels.items())), 0.0)


def test_metrics_tell_administrators_what_the_server_does(server: Running, owner: httpx2.Client) -> None:
    assert owner.get("/metrics").status_code == 403
    with server.client_of("admin") as admin:
        before = read(admin.get("/metrics").text)
        made = admin.post("/v1/sandboxes", json={"name": "measured"})
        box = f"/v1/sandboxes/{made.json()['id']}"
        assert admin.post("/v1/sandboxes", json={"name": "measured"}).status_code == 409
        assert admin.post(f"{box}/exec", json={"command": "head -c 100000 /dev/zero"}).status_code == 200
        remote = RemoteProvider(server.url, api_key=server.key("admin"))
        with Sandbox.connect(made.json()["id"], provider=remote) as sandbox:
            assert sandbox.exec("true").ok
        for number in range(3):
            assert admin.get(f"/v1/nothing/{number}").status_code == 404
        after = read(admin.get("/metrics").text)
        while value(after, "sandboxes", state="running") <= value(before, "sandboxes", state="running") or not any(
            name == "skerry_sockets_total" for name, _ in after
        ):
            time.sleep(0.1)  # the server looks once a second, and learns that a socket is closed when it is
            after = read(admin.get("/metrics").text)
        admin.delete(box)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert more("sandbox_creation_seconds_count") == more("sandbox_creation_seconds_bucket", le="+Inf") == 1
    assert 0 < more("sandbox_creation_seconds_sum") < 60
    assert more("sandbox_creation_failures_total", code="CONFLICT") == more("failures_total", code="CONFLICT") == 1
    assert more("commands_total", api="http") == 1 and more("commands_total", api="wire") >= 1
    assert more("bytes_total", direction="sent") > 100_000 and more("bytes_total", direction="received") > 50
    assert more("http_requests_total", method="POST", route="/v1/sandboxes", status="409") == 1
    assert more("http_requests_total", method="GET", route="unknown", status="404") == 3
    assert not any("nothing" in text for _, labels in after for _, text in labels)
    assert more("sockets_total", route="/v1/sandboxes/{sandbox}/wire", status="101") == 1
    assert value(after, "open", kind="requests") >= 1
    assert value(after, "sandboxes_memory_bytes") > 0
    assert value(after, "storage_size_bytes") > value(after, "storage_free_bytes") > 0
    assert after["process_resident_memory_bytes", frozenset()] > 10_000_000
    assert 0 < time.time() - after["process_start_time_seconds", frozenset()] < 86_400


def test_counts_are_exact_however_large() -> None:
    counted = Metrics()
    for _ in range(1_234_567):
        counted.request("GET", "/", 200, 0.001)
    counted.request("MADE-UP", "/", 405, 0.001)
    found = read(counted.text({}, None))
    assert value(found, "http_request_seconds_count", method="GET", route="/") == 1_234_567
    assert value(found, "http_request_seconds_bucket", method="GET", route="/", le="0.005") == 1_234_567
    assert value(found, "http_requests_total", method="other", route="/", status="405") == 1
