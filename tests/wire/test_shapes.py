"""The shape of a request: what may travel on the stream that it opens."""

from __future__ import annotations

import dataclasses

import pytest

from skerry.wire import (
    STDERR,
    STDOUT,
    Attach,
    AttachFlags,
    Dial,
    ListDir,
    Opener,
    Pack,
    Read,
    Shape,
    Start,
    StartFlags,
    Stat,
    Type,
    Unpack,
    Watch,
    Write,
)
from skerry.wire.codec import MESSAGES

OPENERS = {name: cls for name, cls in sorted(MESSAGES.items()) if issubclass(cls, Opener)}
FOREGROUND, STDIN, TERMINAL = StartFlags.FOREGROUND, StartFlags.STDIN, StartFlags.TERMINAL


def test_every_type_that_opens_a_stream_has_its_message() -> None:
    assert sorted(cls.type for cls in OPENERS.values()) == [kind for kind in Type if kind >= Type.START]


@pytest.mark.parametrize("name", OPENERS)
def test_a_request_has_a_window_if_the_agent_sends_data(name: str) -> None:
    cls = OPENERS[name]
    receives = cls is Start or bool(cls.SHAPE.channels)
    assert receives == ("window" in {field.name for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def test_requests_about_a_process_that_is_there() -> None:
    assert {name for name, cls in OPENERS.items() if cls.SHAPE.of_process} == {"Attach", "Resize", "Signal"}


def test_shapes_of_file_requests() -> None:
    assert Stat(path=b"f").shape == Shape()
    assert ListDir(path=b"d").shape == Shape(channels=(0,))
    assert Write(path=b"f").shape == Unpack(path=b"d").shape == Shape(input=True)
    for message in (Read(path=b"f"), Pack(path=b"d"), Watch(path=b"d")):
        assert message.shape == Shape(channels=(0,), greets=True, max_replies=2)
    assert Dial(port=80).shape == Shape(channels=(0,), input=True, greets=True, max_replies=2)


@pytest.mark.parametrize(
    ("flags", "input", "jumps", "notices"),
    [
        (StartFlags(0), False, True, False),
        (FOREGROUND, False, False, False),
        (FOREGROUND | STDIN, True, False, False),
        (STDIN, True, True, False),
        (FOREGROUND | STDIN | TERMINAL, True, False, True),
        (STDIN | TERMINAL, True, True, True),
        (TERMINAL, True, True, True),
    ],
)
def test_the_flags_of_a_start_decide_its_shape(flags: StartFlags, input: bool, jumps: bool, notices: bool) -> None:
    common = Shape(channels=(STDOUT, STDERR), greets=True, max_replies=2)
    expected = dataclasses.replace(common, input=input, jumps=jumps, notices=notices)
    assert Start(argv=(b"x",), flags=flags).shape == Start(argv=(b"x",), flags=int(flags)).shape == expected
    assert Start(argv=(b"x",), flags=int(flags) | 1 << 10).shape == expected, "a flag from the future decides nothing"


def test_a_view_sends_no_input() -> None:
    control, view = Attach(id=1).shape, Attach(id=1, flags=AttachFlags.VIEW).shape
    assert control == dataclasses.replace(view, input=True)
    assert not view.input and view.jumps and view.greets and view.channels == (STDOUT, STDERR)


def test_where_the_data_begins() -> None:
    assert Read(path=b"f", offset=7).begins_at(0) == 7
    attach = Attach(id=1, since_stdout=5, since_stderr=-1)
    assert [attach.begins_at(channel) for channel in attach.shape.channels] == [5, 0]
    assert Start(argv=(b"x",)).begins_at(STDERR) == 0
