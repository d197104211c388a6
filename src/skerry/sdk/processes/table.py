"""What an agent says about the processes of its sandbox, checked."""

from __future__ import annotations

from typing import TypeVar

from skerry.core import (
    ConnectionLost,
    ExecStatus,
    InvalidArgument,
    ProcessInfo,
    ProcessNotFound,
    SkerryError,
    TerminalInfo,
)
from skerry.sdk.commands.exchange import ended_as
from skerry.sdk.commands.request import MAX_SIDE, decode
from skerry.sdk.connection.link import CONTROL_GUARD, Link
from skerry.sdk.connection.stream import Reply, Stream
from skerry.wire import Message, ProcessEntry, Processes

M = TypeVar("M", bound=Message)


async def first_reply(link: Link, stream: Stream, kind: type[M]) -> M:
    """The REPLY that START and ATTACH begin with; the stream continues, but is closed when this fails."""
    try:
        item = await stream.next(CONTROL_GUARD)
        if not isinstance(item, Reply):
            raise stream.corrupt("output before the REPLY")
        return stream.decode(kind, item.payload)
    except SkerryError as error:
        stream.close()
        if isinstance(error, ConnectionLost):
            await link.raise_lost(error)
        raise


async def list_processes(link: Link) -> list[ProcessInfo]:
    return [entry for entry in await _list(link) if isinstance(entry, ProcessInfo)]


async def list_terminals(link: Link) -> list[TerminalInfo]:
    return [entry for entry in await _list(link) if isinstance(entry, TerminalInfo)]


async def find_process(link: Link, id: int) -> ProcessInfo:
    found = await _find(link, id, "process")
    if isinstance(found, ProcessInfo):
        return found
    raise ProcessNotFound(f"{id} is a terminal, not a process", hint="use terminals.get")


async def find_terminal(link: Link, id: int) -> TerminalInfo:
    found = await _find(link, id, "terminal")
    if isinstance(found, TerminalInfo):
        return found
    raise ProcessNotFound(f"{id} is a process, not a terminal", hint="use processes.get")


async def is_known(link: Link, id: int) -> bool:
    """Whether there is a process or terminal with this id, running or ended."""
    return any(info.id == id for info in await _list(link))


def start_offsets(since: int | tuple[int, int], info: ProcessInfo) -> tuple[int, int]:
    """Where to begin in stdout and stderr; one number is cut to the end of the stream that has less.

    Raises InvalidArgument for an offset beyond the end, or one number beyond both ends.
    """
    written = {"stdout": info.stdout_bytes, "stderr": info.stderr_bytes}
    if isinstance(since, int):
        if since > max(written.values()):
            wrote = f"{info.stdout_bytes} bytes to stdout and {info.stderr_bytes} to stderr"
            raise InvalidArgument(f"since={since} is beyond the end: process {info.id} has written {wrote}")
        return min(since, info.stdout_bytes), min(since, info.stderr_bytes)
    for offset, (stream, size) in zip(since, written.items(), strict=True):
        if offset > size:
            raise InvalidArgument(f"{offset} is beyond the end: process {info.id} has written {size} bytes to {stream}")
    return since


async def _list(link: Link) -> list[ProcessInfo | TerminalInfo]:
    found: list[ProcessInfo | TerminalInfo] = []
    async with link.open(Processes()) as stream:
        while True:
            item = await stream.next(CONTROL_GUARD)
            if not isinstance(item, Reply):
                raise stream.corrupt("DATA in a list of processes")
            if item.final:
                return sorted(found, key=lambda info: info.id)
            found.append(_info(stream, stream.decode(ProcessEntry, item.payload)))


async def _find(link: Link, id: int, what: str) -> ProcessInfo | TerminalInfo:
    for info in await _list(link):
        if info.id == id:
            return info
    raise ProcessNotFound(
        f"sandbox {link.sandbox_id} has no {what} {id}",
        hint=ProcessNotFound.hint if what == "process" else "it has ended; terminals.list() shows those that are known",
    )


def _info(stream: Stream, entry: ProcessEntry) -> ProcessInfo | TerminalInfo:
    status = _status(stream, entry)
    argv = tuple(decode(part) for part in entry.argv)
    if entry.cols is None and entry.rows is None:
        return ProcessInfo(
            id=entry.id,
            pid=entry.pid,
            argv=argv,
            user=entry.user,
            status=status,
            exit_code=entry.exit_code,
            signal=entry.signal,
            started_at=entry.started_ms / 1000,
            stdout_bytes=entry.stdout_bytes,
            stderr_bytes=entry.stderr_bytes,
        )
    size = sound_size(entry.cols, entry.rows)
    if size is None:
        raise stream.corrupt(f"a terminal of {entry.cols} columns and {entry.rows} rows")
    return TerminalInfo(
        id=entry.id,
        pid=entry.pid,
        argv=argv,
        user=entry.user,
        cols=size[0],
        rows=size[1],
        status=status,
        exit_code=entry.exit_code,
        signal=entry.signal,
        started_at=entry.started_ms / 1000,
        output_bytes=entry.stdout_bytes,
    )


def _status(stream: Stream, entry: ProcessEntry) -> ExecStatus:
    try:
        status = ExecStatus(entry.status)
    except ValueError:
        raise stream.corrupt(f"unknown status {entry.status[:40]!r}") from None
    code = entry.exit_code
    if (code is None) == (status is ExecStatus.EXITED) or (code is not None and not 0 <= code <= 255):
        raise stream.corrupt(f"status {status.value} with exit code {code}")
    if entry.stdout_bytes < 0 or entry.stderr_bytes < 0:
        raise stream.corrupt("a negative number of bytes")
    return ended_as(status, code, entry.oom_kills)


def sound_size(cols: int | None, rows: int | None) -> tuple[int, int] | None:
    """The size that an agent says a terminal has; None if it cannot be one."""
    if cols is None or rows is None or not (1 <= cols <= MAX_SIDE and 1 <= rows <= MAX_SIDE):
        return None
    return cols, rows
