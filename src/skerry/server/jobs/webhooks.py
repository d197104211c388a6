"""Sends events to webhooks: in order, signed, at least once, with growing pauses after failures.

The database has the position of each webhook, so a restart forgets nothing. An event that is not accepted after all
attempts is dropped and counted, so that nothing piles up. Each webhook has one request under way at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
import random
import re
import socket
import time

import anyio
import httpx2

from skerry.core import InvalidArgument, SkerryError, is_public
from skerry.server.context import Context
from skerry.server.store import StoredEvent, Webhook

log = logging.getLogger("skerry.server")

AT_ONCE = 8
TIMEOUT = 10.0
LONGEST_PAUSE = 3600.0
BATCH = 20

_HOST = re.compile(rb"[a-z0-9._:-]{1,253}")


def check_url(url: str) -> str:
    """Raises InvalidArgument."""
    _parse(url)
    return url


def _parse(url: str) -> httpx2.URL:
    """The address as the sending HTTP client understands it. Raises InvalidArgument."""
    try:
        found = httpx2.URL(url)
    except httpx2.InvalidURL:
        found = httpx2.URL()
    port = 80 if found.port is None else found.port
    if found.scheme not in ("http", "https") or not _HOST.fullmatch(found.raw_host) or not 0 < port < 1 << 16:
        raise InvalidArgument(f"{url[:200]!r} is not an address for a webhook", hint="write it like https://host/path")
    if found.userinfo or found.fragment:
        raise InvalidArgument("the address of a webhook has no user, password or fragment; it is signed")
    return found


def signature(secret: str, moment: int, body: bytes) -> str:
    """The value of `X-Skerry-Signature`: receivers compute the same over `<t>.<body>` and compare."""
    mac = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={mac}"


async def run(context: Context) -> None:
    """Deliver for ever."""
    limiter = anyio.Semaphore(AT_ONCE)
    busy: set[str] = set()
    # No connection is used twice: a pool knows it by its address alone, which was checked for another webhook's name.
    single = httpx2.Limits(max_keepalive_connections=0)
    async with (
        httpx2.AsyncClient(timeout=TIMEOUT, limits=single, follow_redirects=False, trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):
        while True:
            for webhook in await context.store.webhooks.due(time.time()):
                if webhook.id not in busy:
                    busy.add(webhook.id)
                    tasks.start_soon(_serve, context, client, webhook, limiter, busy)
            await context.events.wait(1.0)


async def _serve(
    context: Context, client: httpx2.AsyncClient, webhook: Webhook, limiter: anyio.Semaphore, busy: set[str]
) -> None:
    """Deliver what is due for one webhook now."""
    try:
        async with limiter:
            await _deliver(context, client, webhook)
    except SkerryError as error:
        log.error("webhook %s: %s", webhook.id, str(error), extra={"code": error.code})
    finally:
        busy.discard(webhook.id)


async def _deliver(context: Context, client: httpx2.AsyncClient, webhook: Webhook) -> None:
    store, upto = context.store, await context.store.events.last()
    events = await store.events.after(webhook.since, projects=[webhook.project_id], types=webhook.types, limit=BATCH)
    attempts, status = webhook.attempts, webhook.last_status
    for event in events:
        if await store.webhooks.get(webhook.project_id, webhook.id) is None:
            return  # it was removed
        status = await _send(client, webhook, event, context.settings.webhook_private)
        if status.startswith("2"):
            context.metrics.webhooks["delivered"] += 1
            await store.webhooks.progress(webhook.id, event.seq, status=status)
            attempts = 0
            continue
        context.metrics.webhooks["failed"] += 1
        attempts += 1
        pause = min(LONGEST_PAUSE, 2.0**attempts) * random.uniform(0.75, 1.25)
        if attempts >= context.settings.webhook_attempts:
            log.warning("webhook %s: event %s dropped: %s", webhook.id, event.seq, status)
            await store.webhooks.progress(webhook.id, event.seq, next_at=time.time() + pause, status=status, dropped=1)
        else:
            until = time.time() + pause
            await store.webhooks.progress(webhook.id, event.seq - 1, attempts=attempts, next_at=until, status=status)
        return
    if len(events) < BATCH:  # the rest is not for this webhook
        await store.webhooks.progress(webhook.id, max(upto, events[-1].seq if events else 0), status=status)


async def _send(client: httpx2.AsyncClient, webhook: Webhook, event: StoredEvent, private: bool) -> str:
    """The status of the answer, or what went wrong."""
    body = json.dumps(dataclasses.asdict(event)).encode()
    moment = int(time.time())
    try:
        with anyio.fail_after(
            TIMEOUT
        ):  # for the whole request: a receiver that answers byte by byte does not delay others
            url = _parse(webhook.url)
            name = url.raw_host.decode()
            # Sent to the very address that was checked: the name may mean another one a moment later.
            target = url.copy_with(host=await _address(name, private))
            async with client.stream(
                "POST",
                target,
                content=body,
                headers={
                    "host": url.netloc.decode(),
                    "content-type": "application/json",
                    "user-agent": "skerry-webhook",
                    "x-skerry-event": event.type,
                    "x-skerry-delivery": str(event.seq),
                    "x-skerry-signature": signature(webhook.secret, moment, body),
                },
                extensions={"sni_hostname": name},
            ) as response:
                return str(response.status_code)  # the body is not read
    except TimeoutError:
        return f"no answer within {TIMEOUT:.0f} s"
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:200]


async def _address(host: str, private: bool) -> str:
    """Raises InvalidArgument for an address that webhooks may not use, OSError if there is none."""
    found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    if not found:
        raise OSError(f"{host} has no address that can be reached from here")
    address = str(found[0][4][0])
    if not private and not is_public(address):
        raise InvalidArgument(f"{host} is an address of this machine or a private network")
    return address
