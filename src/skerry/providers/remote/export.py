"""Exports and imports through the server. The client encrypts and decrypts: the key never leaves it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from skerry.archive import Key, crypt
from skerry.core import (
    ConnectionLost,
    Corrupted,
    ExportInfo,
    InvalidArgument,
    SandboxInfo,
    SandboxSpec,
    Unauthenticated,
    dump_json,
    from_plain,
    from_problem,
    load_json,
)
from skerry.http import Client, Request

CHUNK = 256 * 1024
Progress = Callable[[int], None]
_FRAME = struct.Struct(">cI")
"""The head of a piece of an export: its kind (`d`ata, `p`rogress, `e`nd, `x`: an error) and its length."""


def export_state(
    client: Client, path: str, target: BinaryIO, key: bytes | None, on_progress: Progress | None
) -> ExportInfo:
    """Write what the server sends to `target`. Raises what the server, `target` and `on_progress` raise."""
    encrypter = crypt.Encrypter(Key.of(key)) if key is not None else None
    written = 0

    def put(data: bytes) -> None:
        nonlocal written
        written += len(data)
        view = memoryview(data)
        while view:
            # A raw file may write less than all; an object that only resembles a file may not say how much it wrote.
            taken: int | None = target.write(view)
            view = view[len(view) if taken is None else taken :]

    with client.stream(Request(method="GET", path=path)) as response:
        if encrypter is not None:
            put(encrypter.header)
        for kind, payload in _pieces(response.iter_raw(CHUNK)):
            if kind == b"d":
                put(payload if encrypter is None else encrypter.update(payload))
            elif kind == b"p" and on_progress is not None:
                on_progress(int(payload))
            elif kind == b"x":
                raise from_problem(_object(payload))
            elif kind == b"e":
                if encrypter is not None:
                    put(encrypter.finish())
                info = from_plain(ExportInfo, load_json(payload), strict=False)
                return replace(info, encrypted=encrypter is not None, bytes_written=written)
    raise ConnectionLost("the connection ended before the export was complete")


def _pieces(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(buffer)
            end = _FRAME.size + length
            if len(buffer) < end:
                break
            yield kind, bytes(buffer[_FRAME.size : end])
            del buffer[:end]
    if buffer:
        raise ConnectionLost("the connection ended before the export was complete")


def _object(payload: bytes) -> dict[str, Any]:
    problem = load_json(payload)
    return problem if isinstance(problem, dict) else {}


def import_state(
    client: Client,
    path: str,
    source: BinaryIO,
    spec: SandboxSpec,
    key: bytes | None,
    on_progress: Progress | None,
    params: dict[str, str],
) -> SandboxInfo:
    """Send what `source` gives. `on_progress` gets the bytes sent so far. Raises what the server reports; Corrupted."""
    head = dump_json(spec)
    failed: list[BaseException] = []

    def body() -> Iterator[bytes]:
        yield struct.pack(">I", len(head)) + head
        done = 0
        try:
            for chunk in _plain(source, key):
                yield chunk
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done)
        except BaseException as error:
            failed.append(error)
            raise

    request = Request(method="POST", path=path, params=params, headers={"Content-Type": "application/vnd.skerry.state"})
    try:
        with client.stream(request, content=body()) as response:
            return from_plain(SandboxInfo, load_json(response.read()), strict=False)
    except ConnectionLost:
        if failed:
            raise failed[0] from None
        raise


def _plain(source: BinaryIO, key: bytes | None) -> Iterator[bytes]:
    """The archive, decrypted; an encrypted one is sent only once its key has proved right."""
    head = _read(source, len(crypt.MAGIC))
    if key is None:
        if head == crypt.MAGIC:
            raise Unauthenticated("this archive is encrypted", hint="give the key that was used to write it")
        if head:
            yield head
        while data := source.read(CHUNK):
            yield data
        return
    if head != crypt.MAGIC:
        if head and crypt.MAGIC.startswith(head):
            raise Corrupted("the archive ends within its first bytes")
        raise InvalidArgument(
            "this archive is not encrypted, though a key is given",
            hint="it may have been exchanged; if you trust it, read it without a key",
        )
    header = head + _read(source, crypt.HEADER_SIZE - len(head))
    decrypter = crypt.Decrypter(lambda size: _read(source, size), Key.of(key), header)
    while chunk := decrypter.chunk():
        yield chunk


def _read(source: BinaryIO, size: int) -> bytes:
    """Read all of `size` bytes: a pipe may give less at a time."""
    parts = []
    while size and (data := source.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)
