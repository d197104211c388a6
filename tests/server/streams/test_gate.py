"""The gate between a client and an agent: nothing passes that is not allowed, and nothing allowed is changed or lost."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.server.streams.gate import MAX_REFUSED, Gate, Splice
from skerry.wire import (
    MAX_PAYLOAD,
    Attach,
    AttachFlags,
    Decoder,
    Failure,
    Frame,
    FrameError,
    Hello,
    Life,
    Processes,
    Start,
    Type,
    credit_frame,
    data_frame,
    encode_field,
    encode_frame,
    encode_int,
)

READERS = {Type.PROCESSES, Type.READ, Type.STAT, Type.LIST}


def reads_only(frame: Frame) -> bool:
    return frame.type in READERS


def everything(frame: Frame) -> bool:
    return True


def frames(data: bytes | memoryview) -> list[Frame]:
    decoder = Decoder()
    found = list(decoder.feed(data))
    assert decoder.pending == 0
    return found


class Step(NamedTuple):
    """A stream that a client opens, and what it sends on it."""

    opener: Type
    sent: list[bytes]


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([kind for kind in Type if kind >= 0x10 and kind not in (Type.ATTACH, Type.LIFE)]),
        st.lists(st.binary(max_size=200), max_size=4),
    ),
    max_size=20,
)


@given(STEPS, st.lists(st.integers(1, 400), max_size=60))
@settings(max_examples=200, deadline=None)
def test_what_is_allowed_arrives_byte_for_byte_and_what_is_refused_never_does(
    steps: list[Step], cuts: list[int]
) -> None:
    sent, wanted, refused = b"", b"", set()
    for number, step in enumerate(steps, start=1):
        part = encode_frame(number, step.opener, b"")
        offset = 0
        for data in step.sent:
            part += data_frame(number, 0, offset, data) + credit_frame(number, 1, 7)
            offset += len(data)
        part += encode_frame(number, Type.CLOSE)
        sent += part
        if step.opener in READERS:
            wanted += part
        else:
            refused.add(number)
    gate, forward, answer, at = Gate(reads_only), b"", b"", 0
    for cut in [*cuts, len(sent)]:
        passage = gate.feed(sent[at : at + cut])
        forward, answer, at = forward + bytes(passage.forward), answer + passage.answer, at + cut
    assert forward == wanted
    assert {frame.stream for frame in frames(answer)} == refused
    for frame in frames(answer):
        assert frame.type == Type.ERROR
        assert Failure.decode(frame.payload).code == "PERMISSION_DENIED"


def test_only_one_whole_frame_of_an_open_stream_passes_without_a_look() -> None:
    gate, key = Gate(reads_only), data_frame(1, 0, 0, b"k")
    assert not gate.passes(key), "the stream was never opened"
    gate.feed(encode_frame(1, Type.READ) + encode_frame(2, Type.START))
    assert gate.passes(key)
    assert gate.passes(encode_frame(1, Type.CLOSE))
    for other in (
        b"",
        key[:-1],
        key + key,
        encode_frame(3, Type.READ),
        encode_frame(0, Type.PING),
        encode_frame(1, Type.REPLY),
        data_frame(2, 0, 0, b"of a stream that was refused"),
        b"\xff" * 20,
    ):
        assert not gate.passes(other), other
    gate.feed(key[:5])
    assert not gate.passes(key), "it is the rest of another frame"


@given(st.lists(st.binary(max_size=300), max_size=20))
@settings(max_examples=300, deadline=None)
def test_nonsense_raises_or_waits_but_never_reaches_the_agent(chunks: list[bytes]) -> None:
    gate = Gate(reads_only)
    try:
        for chunk in chunks:
            for frame in frames(gate.feed(chunk).forward):
                assert frame.type in READERS or frame.type in (Type.PING, Type.PONG, Type.DATA, Type.CREDIT, Type.CLOSE)
            assert gate.pending <= MAX_PAYLOAD + 12
    except FrameError:
        pass


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(0, Type.HELLO, Hello(generation=1, token=b"guess").encode()),
        encode_frame(0, Type.BOOT),
        encode_frame(0, Type.START, Start(argv=(b"true",)).encode()),
        encode_frame(3, Type.REPLY),
        encode_frame(3, Type.ERROR),
        encode_frame(3, Type.BOOT),
        encode_frame(3, Type.DATA, b"\0" * 8),
        (MAX_PAYLOAD + 1).to_bytes(4, "little") + bytes(8),
    ],
)
def test_what_no_client_may_say_ends_the_connection(frame: bytes) -> None:
    with pytest.raises(FrameError):
        Gate(everything).feed(frame)


def test_a_stream_is_opened_once_and_ids_ascend() -> None:
    gate = Gate(reads_only)
    gate.feed(encode_frame(5, Type.START, Start(argv=(b"true",)).encode()))
    with pytest.raises(FrameError):
        gate.feed(encode_frame(5, Type.PROCESSES, Processes().encode()))


def test_an_unknown_opener_is_refused() -> None:
    passage = Gate(everything).feed(encode_frame(1, 0x77, b"x"))
    assert passage.forward == b""
    assert Failure.decode(frames(passage.answer)[0].payload).code == "PERMISSION_DENIED"


def test_who_is_refused_again_and_again_is_cut_off() -> None:
    gate = Gate(reads_only)
    for number in range(1, MAX_REFUSED + 1):
        gate.feed(encode_frame(number, Type.REMOVE))
    with pytest.raises(FrameError):
        gate.feed(encode_frame(MAX_REFUSED + 1, Type.REMOVE))


def test_a_lease_does_not_reach_the_agent_and_the_rest_does() -> None:
    passage = Gate(everything).feed(encode_frame(1, Type.LIFE, Life(lease=1, deadline_ms=5).encode()))
    assert Life.decode(frames(passage.forward)[0].payload) == Life(deadline_ms=5)


def test_the_agent_cannot_read_something_else_into_what_decided() -> None:
    """Two values for one field: which one counts is settled here."""
    view, control = encode_int(7, AttachFlags.VIEW), encode_int(7, 0)
    for payload in (view + control, control + view):
        seen: list[int] = []

        def look(frame: Frame, seen: list[int] = seen) -> bool:
            seen.append(Attach.decode(frame.payload).flags)
            return True

        passage = Gate(look).feed(encode_frame(1, Type.ATTACH, encode_int(1, 9) + payload))
        passed = frames(passage.forward)[0].payload
        assert passed.count(encode_int(7, seen[0])) == 1
        assert len(passed) == len(Attach(id=9, flags=seen[0]).encode())


def test_a_malformed_request_is_answered_and_not_passed_on() -> None:
    passage = Gate(everything).feed(encode_frame(1, Type.LIFE, encode_field(1, b"short")))
    assert passage.forward == b""
    assert Failure.decode(frames(passage.answer)[0].payload).code == "INVALID_ARGUMENT"


def test_what_passes_whole_is_not_copied() -> None:
    data = encode_frame(1, Type.READ) + data_frame(1, 0, 0, b"x" * 1000)
    assert Gate(everything).feed(data).forward is data


def test_a_frame_in_many_pieces_costs_what_it_is_long() -> None:
    def seconds(size: int) -> float:
        frame, gate = encode_frame(1, Type.READ, bytes(size)), Gate(everything)
        began = time.process_time()
        passed = [gate.feed(frame[at : at + 64]).forward for at in range(0, len(frame), 64)]
        took = time.process_time() - began
        assert b"".join(passed) == frame
        return took

    assert min(seconds(MAX_PAYLOAD) for _ in range(3)) < 9 * min(seconds(MAX_PAYLOAD // 4) for _ in range(5))


@given(
    st.lists(st.binary(max_size=60), max_size=12),
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60),
)
@settings(max_examples=300, deadline=None)
def test_answers_go_out_between_two_frames_of_the_agent(payloads: list[bytes], cuts: list[tuple[int, bool]]) -> None:
    sent = b"".join(encode_frame(1, Type.REPLY, payload) for payload in payloads)
    answer = encode_frame(9, Type.ERROR, b"no")
    splice, out, answers, at = Splice(), b"", 0, 0
    for size, answered in [*cuts, (len(sent) + 1, False)]:
        out += splice.feed(sent[at : at + size])
        at += size
        if answered:
            answers += 1
            out += splice.answer(answer)
    found = frames(out)
    assert [frame.payload for frame in found if frame.stream == 1] == payloads
    assert sum(frame.stream == 9 for frame in found) == answers
