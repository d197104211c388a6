"""One blocking request from the engine to a sandbox's agent, on a new connection."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TypeVar

from skerry.core import ConnectionLost, Corrupted, HelloReader, agent_error, hello_frame
from skerry.providers.local.launch.launch import address
from skerry.wire import Decoder, Failure, FieldError, Frame, FrameError, Message, Opener, Type, encode_frame

M = TypeVar("M", bound=Message)
_STREAM = 1


def request(path: Path, token: bytes, message: Opener, kind: type[M], *, timeout: float) -> M:
    """Send `message` to the agent that listens at `path`, and return its answer.

    Raises ConnectionLost if no answer comes within `timeout` seconds, Corrupted for an answer that makes no sense, and
    the error that the agent reports.
    """
    until = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX) as client, address(path) as name:
            client.settimeout(timeout)
            client.connect(name)
            client.sendall(hello_frame(token) + encode_frame(_STREAM, message.type, message.encode()))
            return kind.decode(_answer(client, until))
    except OSError as error:
        raise ConnectionLost(f"the agent at {path} does not answer: {error}") from error
    except (FrameError, FieldError) as error:
        raise Corrupted(f"the agent at {path} broke the protocol: {error}") from error


def _answer(client: socket.socket, until: float) -> bytes:
    """The payload of the REPLY; before it comes the agent's greeting."""
    reader, decoder = HelloReader(), Decoder()
    while True:
        client.settimeout(max(0.001, until - time.monotonic()))
        data = client.recv(65536)
        if not data:
            raise ConnectionResetError("it closed the connection")
        for frame in decoder.feed(reader.feed(data)):
            if frame.stream == _STREAM:
                return _reply(frame)


def _reply(frame: Frame) -> bytes:
    if frame.type == Type.ERROR:
        failure = Failure.decode(frame.payload)
        raise agent_error(failure.code, failure.errno, failure.message)
    if frame.type != Type.REPLY:
        raise FrameError(f"frame type {frame.type} where an answer is due")
    return frame.payload
