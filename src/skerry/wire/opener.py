"""Requests: a message that opens a stream, and the shape of what travels on that stream."""

from __future__ import annotations

from typing import ClassVar

from skerry._model import Model
from skerry.wire.codec import Message
from skerry.wire.frames import Type


class Shape(Model):
    """What may travel on a stream. Without options: the agent answers with one REPLY and sends no DATA."""

    channels: tuple[int, ...] = ()
    """The channels on which the agent sends DATA."""
    input: bool = False
    """Whether channel 0 carries DATA of the client."""
    greets: bool = False
    """Whether a first REPLY comes before any DATA."""
    jumps: bool = False
    """Whether the agent may leave bytes out, so that offsets jump forward."""
    notices: bool = False
    """Whether the agent may send a *notice*. Only the client knows that of an ATTACH: it takes them or not."""
    max_replies: int = 1
    """How many REPLYs there are at most; a *notice* does not count."""
    max_reply_bytes: int = 2 << 20
    """How many bytes all of them have at most."""
    of_process: bool = False
    """Whether the request is about a process that is there. No process outlives a stop, so it starts no sandbox."""


class Opener(Message, abstract=True):
    """A message that opens a stream."""

    type: ClassVar[Type]
    SHAPE: ClassVar[Shape] = Shape()

    @property
    def window(self) -> int:
        """How many bytes the agent may send on each channel before the first CREDIT; a field where there are any."""
        return 0

    @property
    def shape(self) -> Shape:
        """The shape of the stream that this message opens: `SHAPE`, unless its flags decide."""
        return self.SHAPE

    def begins_at(self, channel: int) -> int:
        """The offset from which on the agent sends DATA on `channel`."""
        return 0
