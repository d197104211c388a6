"""The reader of the agent's HELLO: however the bytes are cut, and whatever a hostile agent says instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.core import Corrupted, HelloReader, SkerryError, Unauthenticated
from skerry.wire import HEADER_SIZE, MAX_PAYLOAD, Failure, Hello, Type, encode_frame

HELLO = Hello(generation=2, version="1.2.3", uptime_ms=7)
GREETING = encode_frame(0, Type.HELLO, HELLO.encode())


def refusal(code: str) -> bytes:
    return encode_frame(0, Type.ERROR, Failure(code=code, message="no").encode())


@given(after=st.binary(max_size=40), sizes=st.lists(st.integers(1, 30), max_size=30))
def test_the_greeting_and_what_follows_it_come_out_however_they_are_cut(after: bytes, sizes: list[int]) -> None:
    reader, data, rest = HelloReader(), GREETING + after, b""
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        rest += reader.feed(piece)
        assert (reader.hello is None) == (reader.pending + reader.missing > 0)
        assert reader.hello is not None or not rest
    assert (reader.hello, rest) == (HELLO, after)


def test_one_who_reads_what_is_missing_reads_no_byte_of_what_follows() -> None:
    reader, data, reads = HelloReader(), GREETING + b"more", 0
    while reader.hello is None:
        piece, data = data[: reader.missing], data[reader.missing :]
        assert not reader.feed(piece)
        reads += 1
    assert (reader.hello, data, reads) == (HELLO, b"more", 2)


def test_the_rest_is_not_copied() -> None:
    data = bytearray(GREETING + b"more")
    rest = HelloReader().feed(memoryview(data))
    data[-4:] = b"same"
    assert rest == b"same"


def read(data: bytes, size: int) -> Hello | None:
    reader = HelloReader()
    for at in range(0, len(data), size):
        assert not reader.feed(data[at : at + size])
    return reader.hello


NO_HELLO: dict[str, tuple[bytes, type[SkerryError], str]] = {
    "a refused token": (refusal("UNAUTHENTICATED"), Unauthenticated, "no"),
    "another error": (refusal("QUOTA_EXCEEDED"), Corrupted, "QUOTA_EXCEEDED instead of a greeting"),
    "an error that no agent sends": (refusal("NONSENSE"), Corrupted, "NONSENSE"),
    "an error without a code": (encode_frame(0, Type.ERROR), Corrupted, "malformed"),
    "no fields": (encode_frame(0, Type.HELLO), Corrupted, "malformed"),
    "half a field": (encode_frame(0, Type.HELLO, b"\x01\x08"), Corrupted, "malformed"),
    "no such generation": (encode_frame(0, Type.HELLO, Hello(generation=0).encode()), Corrupted, "generation 0"),
    "a HELLO on a stream": (encode_frame(1, Type.HELLO, HELLO.encode()), Corrupted, "on stream 1, not HELLO"),
    "a REPLY": (encode_frame(0, Type.REPLY, HELLO.encode()), Corrupted, "frame type 7"),
    "the header of something large": (
        (MAX_PAYLOAD + 1).to_bytes(4, "little") + GREETING[4:HEADER_SIZE],
        Corrupted,
        f"above {MAX_PAYLOAD}",
    ),
    "the header of a large START": (
        (MAX_PAYLOAD + 1).to_bytes(4, "little") + bytes((0, 0, 0, 0, Type.START, 0, 0, 0)),
        Corrupted,
        "not HELLO",
    ),
}


@pytest.mark.parametrize("what", NO_HELLO)
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["in bytes", "at once"])
def test_anything_else_is_refused(what: str, size: int) -> None:
    data, kind, message = NO_HELLO[what]
    with pytest.raises(kind, match=message):
        read(data, size)
