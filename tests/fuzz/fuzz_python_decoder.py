"""Coverage-guided fuzzing of the Python decoder: any bytes give frames, FrameError or FieldError, in bounded memory.

python tests/fuzz/fuzz_python_decoder.py -max_total_time=60 CORPUS
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["skerry.wire"]):
    from skerry.wire import (
        HEADER_SIZE,
        MAX_PAYLOAD,
        Decoder,
        FieldError,
        Frame,
        FrameError,
        Type,
        encode_frame,
        iter_entries,
        parse_credit,
        parse_data,
    )
    from skerry.wire.codec import MESSAGES

BY_TYPE = {cls.type: cls for cls in MESSAGES.values() if cls.type is not None}
ANSWERS = [cls for cls in MESSAGES.values() if cls.type is None]


def look_into(frame: Frame) -> None:
    """Everything a side would do with the payload."""
    try:
        if frame.type == Type.DATA:
            _, data = parse_data(frame.payload)
            list(iter_entries(data))
        elif frame.type == Type.CREDIT:
            parse_credit(frame.payload)
        elif frame.type == Type.REPLY:
            for cls in ANSWERS:
                decode(cls, frame.payload)
        elif frame.type in BY_TYPE:
            decode(BY_TYPE[Type(frame.type)], frame.payload)
    except (FrameError, FieldError):
        pass


def decode(cls: type, payload: bytes) -> None:
    """What decodes must come back the same from its own encoding."""
    try:
        message = cls.decode(payload)
    except FieldError:
        return
    if message.encode():
        assert cls.decode(message.encode()) == message


def one_input(data: bytes) -> None:
    """The first byte says how the rest is cut; the frames must not depend on it."""
    if not data:
        return
    size, rest = data[0] + 1, data[1:]
    whole, parts = read(rest, len(rest) or 1), read(rest, size)
    assert whole == parts
    for frame in whole[0]:
        assert encode_frame(frame.stream, frame.type, frame.payload, frame.flags)
        look_into(frame)


def read(data: bytes, size: int) -> tuple[list[Frame], bool]:
    decoder = Decoder()
    frames: list[Frame] = []
    try:
        for start in range(0, len(data), size):
            for frame in decoder.feed(data[start : start + size]):
                frames.append(frame)  # noqa: PERF402
            assert decoder.pending <= HEADER_SIZE + MAX_PAYLOAD
    except FrameError:
        return frames, True
    return frames, False


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
