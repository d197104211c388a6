"""Sends events to webhooks: in order, signed, at least once, with growing pauses after failures.

How far each webhook has come is in the database, so nothing is forgotten by a restart; what is not taken after all
attempts is dropped and counted, so that nothing piles up. One request a webhook is under way at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import json
import logging
import random
import socket
import time
from urllib.parse import urlsplit

import anyio
import httpx2

from skerry.core.errors import InvalidArgument, SkerryError
from skerry.server.context import Context
from skerry.server.store import StoredEvent
from skerry.server.store.webhooks import Webhook

log = logging.getLogger("skerry.server")

AT_ONCE = 8
TIMEOUT = 10.0
LONGEST_PAUSE = 3600.0
BATCH = 20

_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.168.0.0/16"
        " 198.18.0.0/15 224.0.0.0/3 ::/128 ::1/128 64:ff9b::/96 64:ff9b:1::/48 2002::/16 fc00::/7 fe80::/10 ff00::/8"
    ).split()
]
"""What a webhook may not reach unless `webhook_private` is set: this machine and the networks behind it."""


def check_url(url: str) -> str:
    """Raises InvalidArgument."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > 2000:
        raise InvalidArgument(f"{url[:200]!r} is not an address for a webhook", hint="https://host/path")
    if parts.username or parts.password or parts.fragment:
        raise InvalidArgument("the address of a webhook has no user, password or fragment; it is signed")
    return url


def signature(secret: str, moment: int, body: bytes) -> str:
    """The value of `X-Skerry-Signature`: receivers compute the same over `<t>.<body>` and compare."""
    mac = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={mac}"


async def run(context: Context) -> None:
    """Deliver for ever."""
    limiter = anyio.Semaphore(AT_ONCE)
    busy: set[str] = set()
    async with (
        httpx2.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):
        while True:
            for webhook in context.store.webhooks.due(time.time(), context.store.events.last()):
                if webhook.id not in busy:
                    busy.add(webhook.id)
                    tasks.start_soon(_serve, context, client, webhook, limiter, busy)
            await context.events.wait(1.0)


async def _serve(
    context: Context, client: httpx2.AsyncClient, webhook: Webhook, limiter: anyio.Semaphore, busy: set[str]
) -> None:
    """What is due for one webhook now."""
    try:
        async with limiter:
            await _deliver(context, client, webhook)
    except SkerryError as error:
        log.error("webhook %s: %s", webhook.id, str(error), extra={"code": error.code})
    finally:
        busy.discard(webhook.id)


async def _deliver(context: Context, client: httpx2.AsyncClient, webhook: Webhook) -> None:
    store, upto = context.store, context.store.events.last()
    events = store.events.after(webhook.since, projects=[webhook.project_id], types=webhook.types, limit=BATCH)
    attempts, status = webhook.attempts, webhook.last_status
    for event in events:
        status = await _send(client, webhook, event, context.settings.webhook_private)
        context.metrics.count("webhook_deliveries")
        if status.startswith("2"):
            await store.webhooks.progress(webhook.id, event.seq, status=status)
            attempts = 0
            continue
        context.metrics.count("webhook_failures")
        attempts += 1
        pause = min(LONGEST_PAUSE, 2.0**attempts) * random.uniform(0.75, 1.25)
        if attempts >= context.settings.webhook_attempts:
            log.warning("webhook %s: event %s dropped: %s", webhook.id, event.seq, status)
            await store.webhooks.progress(webhook.id, event.seq, next_at=time.time() + pause, status=status, dropped=1)
        else:
            until = time.time() + pause
            await store.webhooks.progress(webhook.id, event.seq - 1, attempts=attempts, next_at=until, status=status)
        return
    if len(events) < BATCH:  # the rest is not for this one
        await store.webhooks.progress(
            webhook.id, max(upto, events[-1].seq if events else 0), status=webhook.last_status
        )


async def _send(client: httpx2.AsyncClient, webhook: Webhook, event: StoredEvent, private: bool) -> str:
    """The status of the answer, or what went wrong."""
    body = json.dumps(dataclasses.asdict(event)).encode()
    moment = int(time.time())
    parts = urlsplit(webhook.url)
    try:
        address = await _address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), private)
        # Sent to the very address that was looked at: the name may mean another one a moment later.
        host = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()
        async with client.stream(
            "POST",
            target,
            content=body,
            headers={
                "host": parts.netloc,
                "content-type": "application/json",
                "user-agent": "skerry-webhook",
                "x-skerry-event": event.type,
                "x-skerry-delivery": str(event.seq),
                "x-skerry-signature": signature(webhook.secret, moment, body),
            },
            extensions={"sni_hostname": parts.hostname},
        ) as response:
            return str(response.status_code)  # what it says beyond that is not read
    except (httpx2.HTTPError, OSError, InvalidArgument) as error:
        return f"{type(error).__name__}: {error}"[:200]


async def _address(host: str, port: int, private: bool) -> str:
    """Raises InvalidArgument for one that is not for webhooks, OSError for none."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    if not private and not _public(address):
        raise InvalidArgument(f"{host} is an address of this machine or a private network")
    return address


def _public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return not any((mapped or address) in network for network in _PRIVATE)
