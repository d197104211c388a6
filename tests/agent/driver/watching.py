"""A WATCH as the tests see it: the events that have come, in order."""

from __future__ import annotations

import os
from typing import NamedTuple

from skerry import wire
from skerry.wire import Type
from tests.agent.driver.client import BIG, AgentError, Connection


class Change(NamedTuple):
    kind: str
    path: str
    type: str = ""
    source: str = ""


class Watching:
    """Everything that comes is credited at once, unless `credits` is False."""

    def __init__(
        self,
        connection: Connection,
        path: str = ".",
        *,
        recursive: bool = True,
        window: int = BIG,
        credits: bool = True,
        user: str = "",
    ) -> None:
        self.connection, self.credits = connection, credits
        message = wire.Watch(path=os.fsencode(path), flags=int(recursive), window=window, user=user)
        self.stream = connection.open(message)
        self.directories = connection.reply(self.stream, wire.Watching, final=False).directories
        self.count: int | None = None
        self.offset = 0

    def more(self) -> list[Change]:
        """The events of the next frame; none at the end."""
        frame = self.connection.next(self.stream)
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        if frame.type == Type.REPLY:
            self.count = wire.Count.decode(frame.payload).count
            return []
        offset, data = wire.parse_data(frame.payload)
        assert offset == self.offset
        self.offset += len(data)
        if self.credits:
            self.connection.credit(self.stream, 0, len(data))
        return [
            Change(change.kind, os.fsdecode(change.path), change.type_name, os.fsdecode(change.source))
            for change in wire.iter_changes(data)
        ]

    def until(self, kind: str, path: str) -> list[Change]:
        """All events up to that one, without it."""
        found: list[Change] = []
        while True:
            for change in self.more():
                if (change.kind, change.path) == (kind, path):
                    return found
                found.append(change)

    def rest(self) -> list[Change]:
        found: list[Change] = []
        while events := self.more():
            found += events
        return found

    def close(self) -> None:
        self.connection.send(self.stream, Type.CLOSE)
