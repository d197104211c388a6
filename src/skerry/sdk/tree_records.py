"""The records of a tree stream, taken out of the bytes of a PACK."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.sdk.stream import Stream
from skerry.wire import TreeEnd

ENTRY, CONTENT, FILE_END, SKIPPED, TREE_END = 1, 2, 3, 4, 5
HEAD = 5
MAX_LENGTH = {ENTRY: 128 << 10, CONTENT: 8 + (128 << 10), FILE_END: 8, SKIPPED: 128 << 10, TREE_END: 1024}
MIN_LENGTH = {CONTENT: 9, FILE_END: 8}


class RecordReader:
    """Whole records out of frames that split them anywhere. An agent that breaks the rules ends the session."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest = b""
        self._entries = 0
        self._end: TreeEnd | None = None

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The kind and payload of each record that is complete now."""
        data, position = self._rest + data, 0
        while len(data) - position >= HEAD:
            kind, length = data[position], int.from_bytes(data[position + 1 : position + HEAD], "little")
            self._check(kind, length)
            end = position + HEAD + length
            if end > len(data):
                break
            payload, position = data[position + HEAD : end], end
            self._note(kind, payload)
            yield kind, payload
        self._rest = data[position:]

    def _check(self, kind: int, length: int) -> None:
        if not MIN_LENGTH.get(kind, 0) <= length <= MAX_LENGTH.get(kind, -1):
            raise self._stream.corrupt(f"a tree record of kind {kind} with {length} bytes")
        if self._end is not None or (kind in (CONTENT, FILE_END) and not self._entries):
            raise self._stream.corrupt(f"a tree record of kind {kind} where none may be")

    def _note(self, kind: int, payload: bytes) -> None:
        if kind == ENTRY:
            self._entries += 1
        elif kind == TREE_END:
            self._end = self._stream.decode(TreeEnd, payload)

    def finish(self) -> None:
        """Raises Corrupted unless the tree was complete."""
        if self._rest or self._end is None or self._end.entries != self._entries:
            raise self._stream.corrupt("a tree that is not complete")
