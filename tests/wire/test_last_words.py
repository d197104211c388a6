"""Last words come from the sandbox: whole and plausible, or refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.wire import (
    LAST_WORDS_LIMIT,
    FieldError,
    FrameError,
    LastWords,
    Type,
    encode_frame,
    parse_last_words,
)

WORDS = LastWords(reason="idle", at_ms=1_700_000_000_000, env_count=2, env=(b"A=1", b"B=\xff="))


def file_of(words: LastWords) -> bytes:
    return encode_frame(0, Type.WORDS, words.encode())


def test_what_was_written_is_read() -> None:
    assert parse_last_words(file_of(WORDS)) == WORDS
    short = LastWords(reason="end", at_ms=1)
    assert parse_last_words(file_of(short)) == short
    assert parse_last_words(b"") is None


@pytest.mark.parametrize(
    "data",
    [
        file_of(WORDS)[:-1],
        file_of(WORDS)[:11],
        file_of(WORDS) + b"x",
        file_of(WORDS) * 2,
        encode_frame(1, Type.WORDS, WORDS.encode()),
        encode_frame(0, Type.BOOT, WORDS.encode()),
        bytes(LAST_WORDS_LIMIT * 2),
        b"\xff" * 100,
        file_of(dataclasses.replace(WORDS, reason="bored")),
        file_of(dataclasses.replace(WORDS, env_count=3)),
        file_of(dataclasses.replace(WORDS, env_count=None)),
        file_of(dataclasses.replace(WORDS, env_count=-2)),
        file_of(dataclasses.replace(WORDS, env=(b"A=1", b"=2"))),
        file_of(dataclasses.replace(WORDS, env=(b"A=1", b"B"))),
        file_of(dataclasses.replace(WORDS, env=(b"A=1", b"B=\0"))),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises((FrameError, FieldError)):
        parse_last_words(data)


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_garbage_is_refused_or_read(data: bytes, framed: bool) -> None:
    try:
        words = parse_last_words(encode_frame(0, Type.WORDS, data) if framed else data)
    except (FrameError, FieldError):
        return
    assert isinstance(words, LastWords)
