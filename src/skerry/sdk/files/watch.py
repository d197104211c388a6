"""Changes of files, as they happen."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import anyio

from skerry.core import ConnectionLost, FileEvent, FileEventKind
from skerry.sdk.commands.request import decode
from skerry.sdk.connection.link import FILE_GUARD, Link
from skerry.sdk.connection.stream import Data, Reply, Stream
from skerry.wire import Change, Count, FieldError, Watch, Watching, iter_changes

_KINDS = {kind.value: kind for kind in FileEventKind}
_TYPES = {"": None, "file": False, "dir": True}


class AsyncWatch:
    """Iterate it for the changes below a path, in order; it ends when that path itself is removed.

    Once `async with` has been entered, every later change is seen. Without it the watch begins with the first event
    asked for. A caller that takes events too slowly gets one of kind `overflow`: some were lost.
    """

    def __init__(self, link: Link, message: Watch) -> None:
        self._link, self._message = link, message
        self._stream: Stream | None = None
        self._events: deque[FileEvent] = deque()
        self._held = 0
        self._count = 0
        self._ended = False
        # Lets one task at a time take from the stream.
        self._lock = anyio.Lock(fast_acquire=True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def __aenter__(self) -> Self:
        """Begin to watch.

        Raises FileMissing, PermissionDenied, and QuotaExceeded for too many watches or directories.
        """
        async with self._lock:
            await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop watching; a task that waits for an event sees the end."""
        self._ended = True
        self._events.clear()
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        stream = self._stream
        if stream is not None and not stream.ended and not stream.session.loop.is_closed():
            stream.session.loop.call_soon_threadsafe(stream.close)

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        async with self._lock:
            if not self._ended:
                stream = await self._begin()
                while not self._events and not self._ended:
                    await self._advance(stream)
            if self._events:
                return self._events.popleft()
        raise StopAsyncIteration

    async def _begin(self) -> Stream:
        if self._stream is None:
            session = await self._link.session()
            stream = session.open(self._message)
            try:
                item = await self._next(stream, FILE_GUARD)
                if not isinstance(item, Reply) or item.final:
                    raise stream.corrupt("a WATCH that does not begin with what is watched")
                if stream.decode(Watching, item.payload).directories < 0:
                    raise stream.corrupt("a negative number of directories")
            except BaseException:
                stream.close()
                raise
            self._stream = stream
        return self._stream

    async def _next(self, stream: Stream, guard: float | None = None) -> Data | Reply:
        try:
            return await stream.next(guard)
        except ConnectionLost as lost:
            await self._link.raise_lost(lost)

    async def _advance(self, stream: Stream) -> None:
        """Take the next part of what the agent has sent. The last one was used up: its credit goes back."""
        if self._held:
            stream.took(0, self._held)
            self._held = 0
        try:
            item = await self._next(stream)
        except ConnectionLost:
            if self._ended:  # closed by another task
                return
            raise
        if isinstance(item, Data):
            self._held = len(item.data)
            self._events.extend(_changes(stream, item))
            self._count += len(self._events)
            return
        if not item.final or stream.decode(Count, item.payload).count != self._count:
            raise stream.corrupt("a WATCH that has not sent as many events as it says")
        self._ended = True


def _changes(stream: Stream, item: Data) -> list[FileEvent]:
    try:
        return [_event(change) for change in iter_changes(bytes(item.data))]
    except FieldError as error:
        raise stream.corrupt(f"an event: {error}") from error


def _event(change: Change) -> FileEvent:
    """Raises FieldError for what no event can be."""
    kind = _KINDS.get(change.kind)
    if kind is None or change.type_name not in _TYPES:
        raise FieldError(f"kind {change.kind[:40]!r}, type {change.type_name[:40]!r}")
    if (kind is FileEventKind.RENAMED) != bool(change.source):
        raise FieldError("a former path belongs to a rename, and to nothing else")
    for path in (change.path, change.source):
        if path and (b"\0" in path or any(part in (b"", b".", b"..") for part in path.split(b"/"))):
            raise FieldError(f"the path {path[:200]!r}")
    return FileEvent(
        kind=kind,
        path=decode(change.path),
        old_path=decode(change.source) or None,
        is_dir=_TYPES[change.type_name],
    )
