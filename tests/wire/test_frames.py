"""The decoder gives the same frames for any way of cutting the bytes, and nothing but FrameError for garbage."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.wire import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    Decoder,
    FieldError,
    Frame,
    FrameError,
    Message,
    credit_frame,
    data_frame,
    decode_fields,
    encode_field,
    encode_frame,
    encode_int,
    iter_entries,
    parse_credit,
    parse_data,
)
from skerry.wire.codec import MESSAGES
from skerry.wire.fields import decode_int

frames = st.builds(
    Frame,
    stream=st.integers(0, 2**32 - 1),
    type=st.integers(0, 255),
    flags=st.integers(0, 255),
    payload=st.binary(max_size=3000),
)


@given(st.lists(frames, max_size=12), st.data())
def test_any_split_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    raw = b"".join(encode_frame(frame.stream, frame.type, frame.payload, frame.flags) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    decoder = Decoder()
    got = [frame for start, end in pairwise([0, *cuts, len(raw)]) for frame in decoder.feed(raw[start:end])]
    assert got == sent
    assert decoder.pending == 0


@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_garbage_gives_frames_or_a_frame_error_and_holds_one_frame_at_most(pieces: list[bytes]) -> None:
    decoder = Decoder()
    fed = 0
    for piece in pieces:
        fed += len(piece)
        try:
            for frame in decoder.feed(piece):
                assert len(frame.payload) <= MAX_PAYLOAD
        except FrameError:
            return
        assert decoder.pending <= min(fed, HEADER_SIZE + MAX_PAYLOAD)


@given(st.integers(MAX_PAYLOAD + 1, 2**32 - 1))
def test_a_length_above_the_limit_is_refused_before_any_payload(length: int) -> None:
    decoder = Decoder()
    with pytest.raises(FrameError):
        list(decoder.feed(struct.pack("<IIBBH", length, 1, 5, 0, 0)))


def test_the_longest_frame_passes_and_a_longer_one_cannot_be_made() -> None:
    payload = bytes(MAX_PAYLOAD)
    (frame,) = Decoder().feed(encode_frame(1, 5, payload))
    assert frame.payload == payload
    with pytest.raises(FrameError):
        encode_frame(1, 5, payload + b"x")


def test_reserved_bytes_are_ignored() -> None:
    (frame,) = Decoder().feed(struct.pack("<IIBBH", 0, 7, 2, 3, 0xFFFF))
    assert frame == Frame(7, 2, 3, b"")


def test_a_frame_error_in_the_middle_keeps_the_frames_before_it() -> None:
    decoder = Decoder()
    feed = decoder.feed(encode_frame(1, 2, b"abc") + struct.pack("<IIBBH", 2**31, 1, 5, 0, 0))
    assert next(feed).payload == b"abc"
    with pytest.raises(FrameError):
        next(feed)


@given(st.integers(0, 15), st.integers(0, 2**64 - 1), st.binary(max_size=1000), st.booleans())
def test_data_round_trips(channel: int, offset: int, content: bytes, end: bool) -> None:
    (frame,) = Decoder().feed(data_frame(3, channel, offset, content, end=end))
    assert parse_data(frame.payload) == (offset, content)
    assert frame.flags == channel | (0x80 if end else 0)


@given(st.integers(0, 2**32 - 1))
def test_credit_round_trips(amount: int) -> None:
    (frame,) = Decoder().feed(credit_frame(3, 1, amount))
    assert parse_credit(frame.payload) == amount


@given(st.binary(max_size=7))
def test_short_data_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        parse_data(payload)


@given(st.binary(max_size=12).filter(lambda payload: len(payload) != 4))
def test_credit_of_another_size_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        parse_credit(payload)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=100)), max_size=30))
def test_fields_round_trip_in_order(pairs: list[tuple[int, bytes]]) -> None:
    found = decode_fields(b"".join(encode_field(tag, value) for tag, value in pairs))
    assert {tag: [value for other, value in pairs if other == tag] for tag, _ in pairs} == found


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_round_trip(number: int) -> None:
    assert decode_int(decode_fields(encode_int(9, number))[9][0]) == number


@given(st.binary(max_size=20).filter(lambda value: len(value) != 8))
def test_an_integer_of_another_size_is_refused(value: bytes) -> None:
    with pytest.raises(FieldError):
        decode_int(value)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.sampled_from(sorted(MESSAGES)))
def test_garbage_in_a_message_is_a_field_error_or_a_message(payload: bytes, name: str) -> None:
    try:
        message = MESSAGES[name].decode(payload)
    except FieldError:
        return
    assert isinstance(message, Message)


@given(st.binary(max_size=400))
def test_garbage_for_directory_entries_is_a_field_error_or_entries(data: bytes) -> None:
    try:
        entries = list(iter_entries(data))
    except FieldError:
        return
    assert len(entries) <= len(data) // 4
