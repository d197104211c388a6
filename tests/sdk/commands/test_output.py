"""Output is bounded with its head and tail, and text is never cut inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.core.cut import MAX_PARTIAL, text_of
from skerry.sdk.commands.output import MAX_LINE, Collector, LineDecoder, TextDecoder


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


@settings(deadline=None)
@given(st.lists(st.text(alphabet="aü\n", max_size=30), max_size=40), st.integers(1, 100))
def test_text_that_is_not_complete_has_whole_lines_and_counts_the_rest(parts: list[str], limit: int) -> None:
    collector = Collector(limit)
    for part in parts:
        collector.add(part.encode())
    everything, text = "".join(parts), text_of(collector.value(), collector.cut)
    if collector.cut is None:
        assert text == everything
        return
    head, _, rest = text.partition("[… ")
    size, _, tail = rest.partition(" byte")
    tail = tail.removeprefix("s").removeprefix(" left out …]")
    assert "\ufffd" not in text
    assert everything.startswith(head) and everything.endswith(tail.removeprefix("\n"))
    lines = set(everything.split("\n"))
    assert all(line in lines for line in (*head.split("\n")[:-1], *tail.split("\n")[1:]))
    shown = len(head.encode()) + len(tail.removeprefix("\n").encode())
    assert int(size.replace(",", "")) in (len(everything.encode()) - shown, len(everything.encode()) - shown - 1)


def test_a_mark_stands_inside_a_line_that_is_too_long_to_leave_out() -> None:
    line = b"x" * (MAX_PARTIAL + 1)
    collector = Collector(2 * len(line) + 8)
    collector.add(b"a\n" + line * 3 + b"\nb\n")
    head, mark, tail = text_of(collector.value(), collector.cut).partition(f"[… {len(line) - 3:,} bytes left out …]")
    assert mark and head.startswith("a\nxx") and tail.endswith("xx\nb\n")
    assert "\n" not in head[2:] + tail[:-3]


def test_what_never_came_is_a_cut_like_any_other() -> None:
    collector = Collector(100)
    collector.add(b"one\ntw")
    collector.skip(10)
    collector.add(b"e\nsix\n")
    assert collector.value() == b"one\ntwe\nsix\n"
    assert text_of(collector.value(), collector.cut) == "one\n[… 14 bytes left out …]\nsix\n"
    collector.skip(5)
    collector.add(b"\nlast\n")
    assert text_of(collector.value(), collector.cut) == "one\n[… 24 bytes left out …]\nlast\n"
    assert collector.dropped == 10 + 6 + 5


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
