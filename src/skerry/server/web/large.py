"""Large answers and outputs, made a slice at a time so that other clients do not wait, and few of them at once.

A slice takes less than a millisecond of the event loop, and an actor has one slice at a time: however much one actor
asks for at once, others wait no longer than that.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from json.encoder import encode_basestring_ascii
from typing import Any

from fastapi import Response

from skerry.core import Cut, ExecResult, around
from skerry.sdk import AsyncExecStream
from skerry.server.access.identity import Actor
from skerry.server.context import Context
from skerry.server.projects.slots import OUTPUTS, SLICES
from skerry.server.web.models.mirror import PROPERTIES, TEXT, answer, to_json
from skerry.server.web.responses import Sender, Streamed

LARGE = 1 << 20
"""Bytes of output that the server holds for every command; of larger outputs an actor may have few at once."""
SLICE = 24 << 10
"""Bytes or characters that are written at once; a multiple of three, for base64."""
ITEMS = 20
"""Items of a list that are read or written at once."""


@asynccontextmanager
async def sliced(context: Context, who: Actor) -> AsyncIterator[None]:
    """Around a slice of work in the event loop; afterwards others have their turn."""
    async with context.slots.taken(SLICES, who):
        yield
        await asyncio.sleep(0)


def gradual(context: Context, who: Actor, content: object, status: int = 200) -> Response:
    """`answer`, written in slices if it is large."""
    if not _is_large(content):
        return answer(content, status)
    return Streamed(lambda sender: send(sender, context, who, content, status))


async def send(
    sender: Sender, context: Context, who: Actor, content: object, status: int = 200, kind: str = "application/json"
) -> None:
    """Send a value as JSON, in slices if it is large."""
    if not _is_large(content):
        whole = to_json(content)
        await sender.head(status, {"content-type": kind, "content-length": str(len(whole))})
        await sender.write(whole)
        return
    pieces = json_pieces(content)
    await sender.head(status, {"content-type": kind})
    while True:
        async with sliced(context, who):
            piece = next(pieces, None)
        if piece is None:
            return
        await sender.write(piece)


async def collected(held: AsyncExitStack, context: Context, who: Actor, running: AsyncExecStream) -> ExecResult:
    """The result of a command; a large output waits for one of a few places, and keeps it until `held` ends.

    During that wait the command itself waits too, once the pipes that it writes to are full.
    """
    size, counted = 0, False
    async with running:
        async for chunk in running:
            size += len(chunk.data)
            if size > LARGE and not counted:
                await held.enter_async_context(context.slots.taken(OUTPUTS, who))
                counted = True
        return await running.wait()


def _is_large(content: object) -> bool:
    if isinstance(content, str | bytes):
        return len(content) > SLICE
    if isinstance(content, Mapping):
        return any(map(_is_large, content.values()))
    if isinstance(content, list | tuple):
        return len(content) > ITEMS
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        return any(_is_large(getattr(content, field.name)) for field in dataclasses.fields(content))
    return False


def json_pieces(content: object) -> Iterator[bytes]:
    """What `to_json` makes, in pieces."""
    if isinstance(content, str):
        yield from _text(content)
    elif isinstance(content, bytes):
        yield from _base64(content)
    elif isinstance(content, Mapping):
        yield from _object((str(name), json_pieces(value)) for name, value in content.items())
    elif isinstance(content, list | tuple):
        yield from _list(content)
    elif dataclasses.is_dataclass(content) and not isinstance(content, type) and _is_large(content):
        yield from _object(_members(content))
    else:
        yield to_json(content)


def _object(members: Iterator[tuple[str, Iterator[bytes]]]) -> Iterator[bytes]:
    before = b"{"
    for name, value in members:
        yield before + to_json(name) + b":"
        yield from value
        before = b","
    yield b"}" if before == b"," else b"{}"


def _members(content: Any) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The fields as in `mirror.plain`."""
    for field in dataclasses.fields(content):
        item = getattr(content, field.name)
        if type(content) in TEXT and isinstance(item, bytes):
            name, exact = field.name.removesuffix("_bytes"), [True]
            cut = getattr(content, f"{name}_cut", None)
            yield name, _quoted(_decoded(item, exact) if cut is None else _marked(item, cut))
            yield f"{name}_base64", iter((b"null",)) if exact[0] and cut is None else _base64(item)
        else:
            yield field.name, json_pieces(item)
    for name in PROPERTIES.get(type(content), ()):
        yield name, json_pieces(getattr(content, name))


def _list(items: Sequence[object]) -> Iterator[bytes]:
    yield b"["
    for start in range(0, len(items), ITEMS):
        yield (b"," if start else b"") + b",".join(map(to_json, items[start : start + ITEMS]))
    yield b"]"


def _text(text: str) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(text), SLICE):
        yield _escaped(text[start : start + SLICE])
    yield b'"'


def _decoded(data: bytes, exact: list[bool]) -> Iterator[bytes]:
    """Bytes as text; afterwards `exact` says whether the text represents the bytes exactly."""
    replacing = codecs.getincrementaldecoder("utf-8")("replace")
    strict = codecs.getincrementaldecoder("utf-8")("strict")
    for start in range(0, len(data), SLICE):
        part, last = data[start : start + SLICE], start + SLICE >= len(data)
        if exact[0]:
            try:
                strict.decode(part, last)
            except UnicodeDecodeError:
                exact[0] = False
        yield _escaped(replacing.decode(part, last))


def _marked(data: bytes, cut: Cut) -> Iterator[bytes]:
    """Bytes as text, with a mark where some were left out."""
    head, mark, tail = around(data, cut)
    yield from _decoded(head, [False])
    yield _escaped(mark)
    yield from _decoded(tail, [False])


def _quoted(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield b'"'
    yield from pieces
    yield b'"'


def _base64(data: bytes) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(data), SLICE):
        yield base64.b64encode(data[start : start + SLICE])
    yield b'"'


def _escaped(text: str) -> bytes:
    return encode_basestring_ascii(text)[1:-1].encode("ascii")
