"""Events of sandboxes, as a stream of server-sent events or in pages; both continue from a cursor."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Literal

from fastapi import Header, Query, Request
from fastapi.responses import StreamingResponse

from skerry.core import InvalidArgument, NotFound, SandboxNotFound
from skerry.server.access.identity import Actor, still_good
from skerry.server.access.permissions import Action
from skerry.server.context import About, Context, Ctx, Sandbox, Who
from skerry.server.store import StoredEvent
from skerry.server.web.guard import ProjectQuery, Routes
from skerry.server.web.models.types import Answer

router = Routes("events")

KEEPALIVE = 15.0
PAGE = 500
STREAM = "text/event-stream"

Since = Annotated[
    str | None, Query(max_length=20, description="A cursor, or `now`; without it, begin with the first event.")
]
Types = Annotated[
    list[str] | None, Query(alias="type", max_length=50, description="Only events of these types; repeatable.")
]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most events to return.")]
Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait for an event if there is none.")]
LastId = Annotated[str | None, Header(alias="last-event-id", description="As `since`: browsers send it by themselves.")]

Find = Callable[[int, int], Awaitable[Sequence[StoredEvent]]]
"""Events above a cursor, up to a number. Raises NotFound if the client may no longer read."""


class EventModel(Answer):
    seq: int
    """Orders the events of all sandboxes; the cursor."""
    sandbox_id: str
    """The id of the sandbox."""
    project_id: str | None
    """The id of its project; null: none."""
    type: str
    """What happened."""
    time: float
    """When."""
    data: dict[str, str]
    """What is known about it."""


class EventPage(Answer):
    items: list[EventModel]
    """The events, oldest first."""
    cursor: str
    """The value to pass as `since` to continue."""
    gap: bool
    """Whether events after `since` are no longer kept."""


_ANSWERS = {200: {"description": "Events", "content": {STREAM: {"schema": {"type": "string"}}}}}


@router.get("/v1/events", response_model=EventPage, responses=_ANSWERS)
async def of_all(
    context: Ctx,
    who: Who,
    request: Request,
    project: ProjectQuery = None,
    since: Since = None,
    type: Types = None,
    limit: Limit = 100,
    wait: Wait = 0.0,
    last_event_id: LastId = None,
) -> EventPage | StreamingResponse:
    """List the events of all sandboxes that you see. With `Accept: text/event-stream` it never ends."""

    async def find(seq: int, most: int) -> Sequence[StoredEvent]:
        # Read each time: the user may have left a project since.
        everything = context.sees_unclaimed(who, project)
        projects = None if everything else [item.id for item in context.projects(who, project)]
        return await context.store.events.after(seq, projects=projects, types=type or (), limit=most)

    return await _answer(context, who, request, find, last_event_id or since, limit, wait)


@router.get("/v1/sandboxes/{sandbox}/events", response_model=EventPage, responses=_ANSWERS)
async def of_sandbox(
    context: Ctx,
    who: Who,
    request: Request,
    subject: About,
    sandbox: Sandbox,
    since: Since = None,
    type: Types = None,
    limit: Limit = 100,
    wait: Wait = 0.0,
    last_event_id: LastId = None,
) -> EventPage | StreamingResponse:
    """List the events of one sandbox. As a stream it ends with the event `destroyed`."""
    await context.events.collect(sandbox.id)

    async def find(seq: int, most: int) -> Sequence[StoredEvent]:
        if not context.allows(who, Action.SANDBOX_READ, subject):
            raise subject.missing()
        return await context.store.events.after(seq, sandbox_id=sandbox.id, types=type or (), limit=most)

    return await _answer(context, who, request, find, last_event_id or since, limit, wait, ends=True)


async def _answer(
    context: Context,
    who: Actor,
    request: Request,
    find: Find,
    cursor: str | None,
    limit: int,
    wait: float,
    *,
    ends: bool = False,
) -> EventPage | StreamingResponse:
    since = await _parse(context, cursor)
    gap = 0 < since < await context.store.events.first() - 1
    if STREAM in request.headers.get("accept", ""):
        stream = _stream(context, who, find, since, gap=gap, ends=ends)
        return StreamingResponse(stream, media_type=STREAM, headers={"x-accel-buffering": "no"})
    until = time.monotonic() + wait
    while True:
        upto, found = await context.store.events.last(), await find(since, limit)
        left = until - time.monotonic()
        if found or left <= 0 or context.stopping.is_set() or not still_good(context.store.accounts, who):
            break
        await context.events.wait(min(left, 1.0))
    items = [EventModel(**dataclasses.asdict(event)) for event in found]
    cursor = str(items[-1].seq if len(items) == limit else _past(since, upto, found))
    return EventPage(items=items, cursor=cursor, gap=gap)


async def _stream(
    context: Context, who: Actor, find: Find, since: int, *, gap: bool, ends: bool
) -> AsyncIterator[bytes]:
    context.metrics.open["event_streams"] += 1
    try:
        yield b"retry: 1000\n\n" + (_message("gap", since, {"since": since}) if gap else b"")
        said = time.monotonic()
        while not context.stopping.is_set() and still_good(context.store.accounts, who):
            upto = await context.store.events.last()
            try:
                found = await find(since, PAGE)
            except (NotFound, SandboxNotFound):
                return
            for event in found:
                since = event.seq
                yield _message(event.type, event.seq, dataclasses.asdict(event))
                if ends and event.type == "destroyed":
                    return
            if found:
                said = time.monotonic()
            elif time.monotonic() - said > KEEPALIVE:
                yield b": still here\n\n"
                said = time.monotonic()
            if len(found) < PAGE:
                since = _past(since, upto, found)
                await context.events.wait(1.0)
    finally:
        context.metrics.open["event_streams"] -= 1


def _past(since: int, upto: int, found: Sequence[StoredEvent]) -> int:
    """The cursor after all events read, so that those that do not match are not read again and again."""
    return max(since, upto, found[-1].seq if found else 0)


def _message(type: str | Literal["gap"], seq: int, data: object) -> bytes:
    return f"id: {seq}\nevent: {type}\ndata: {json.dumps(data)}\n\n".encode()


async def _parse(context: Context, cursor: str | None) -> int:
    if cursor is None:
        return 0
    if cursor == "now":
        return await context.store.events.last()
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidArgument(f"{cursor!r} is not a cursor", hint="give a number from an earlier answer, or `now`")
    return int(cursor)
