"""Output is bounded with its head and tail, and text is never cut inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.sdk.output import MAX_LINE, Collector, LineDecoder, TextDecoder


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 200))
def test_the_first_and_the_last_bytes_are_kept_and_the_rest_counted(parts: list[bytes], limit: int) -> None:
    collector = Collector(limit)
    for part in parts:
        collector.add(part)
    everything = b"".join(parts)
    head, tail = limit // 2, limit - limit // 2
    cut = everything[:head] + (everything[-tail:] if tail else b"")
    expected = everything if len(everything) <= limit else cut
    assert collector.value() == expected
    assert collector.dropped == len(everything) - len(expected)
    assert collector.total == len(everything)


def test_a_collector_holds_little_more_than_its_limit() -> None:
    collector = Collector(1000)
    for _ in range(10_000):
        collector.add(bytes(977))
    assert len(collector._head) + len(collector._tail) <= 3000


@settings(deadline=None)
@given(st.text(max_size=200), st.data())
def test_text_in_any_pieces_is_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    decoder, pieces, rest = TextDecoder(), [], raw
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(decoder.feed(rest[:size]))
        rest = rest[size:]
    pieces.append(decoder.feed(b"", end=True))
    assert "".join(pieces) == raw.decode("utf-8", "replace")


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab\nü", max_size=20), max_size=20))
def test_lines_in_any_pieces_are_the_same_lines(pieces: list[str]) -> None:
    decoder = LineDecoder()
    lines = [line for piece in pieces for line in decoder.feed(piece)] + decoder.finish()
    text = "".join(pieces)
    expected = text.split("\n")
    assert lines == (expected if expected[-1] else expected[:-1])


@pytest.mark.parametrize(("text", "lines"), [("a\r\nb\r\n", ["a", "b"]), ("\n\n", ["", ""]), ("x", ["x"]), ("", [])])
def test_line_ends(text: str, lines: list[str]) -> None:
    decoder = LineDecoder()
    assert decoder.feed(text) + decoder.finish() == lines


def test_a_line_without_end_comes_in_pieces() -> None:
    decoder = LineDecoder()
    got = [line for _ in range(5) for line in decoder.feed("x" * (MAX_LINE // 2))]
    got += decoder.finish()
    assert len(got) > 1
    assert sum(map(len, got)) == 5 * (MAX_LINE // 2)
